// SPDX-License-Identifier: Apache-2.0
// The known families of chat templates, one row each. A form is text with control spellings in braces: "{<|im_end|>}\n";
// {bos} and {eos} stand for the vocabulary's own.
#pragma once

#include <string>
#include <vector>

namespace kvring {

enum class SystemStyle {
  kOwnTurn,    // a turn like the others
  kFirstUser,  // inside the first user's turn, between its opening and its content
  kLastUser,   // inside the last one
};

struct ChatFamily {
  const char* name;
  std::vector<const char*> signs;      // all of them occur in the template's text ...
  std::vector<const char*> not_signs;  // ... and none of these
  SystemStyle system_style;
  const char* system_open;
  const char* system_close;
  const char* user_open;
  const char* user_close;
  const char* assistant_open;
  const char* assistant_close;
  const char* generation;  // opens the answer
  bool trims;  // contents lose white space at both ends, where the file's template says so
};

// In the order of recognition: the first whose signs fit.
const std::vector<ChatFamily>& ChatFamilies();

// Every control spelling of the table, without {bos} and {eos}.
const std::vector<std::string>& ChatMarks();

}  // namespace kvring
