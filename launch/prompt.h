// SPDX-License-Identifier: Apache-2.0
// From files and a question to the ids that the model reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/vocab_data.h"

namespace kvring {

struct PromptFlags {
  std::vector<std::string> files;  // documents, "-" for standard input
  std::string question;
  std::string ids_file;  // prompt as token ids instead of text
  bool raw = false;      // no chat template: documents, then the question, as they are
};

struct Prompt {
  std::vector<int32_t> ids;
  std::string form;  // "chatml", "raw", "ids"
  std::string rule;  // which begin-token rule was used
  std::vector<std::string> warnings;
};

// One clear message for what cannot be a prompt: a file that is missing, empty or binary (F17, with the byte), no text at all.
absl::StatusOr<Prompt> MakePrompt(const PromptFlags& flags, const VocabData& vocab,
                                  const Tokenizer& tokenizer);

// The whole file, or standard input for "-". INVALID_ARGUMENT when it is empty or holds a NUL byte.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

}  // namespace kvring
