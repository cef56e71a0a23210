// SPDX-License-Identifier: Apache-2.0
// Chat templates by recognition: a model file carries its template as a program (Jinja); this reads which of the known
// families the program belongs to and renders that family's form. Nothing of the file is executed.
// Immutable and thread-safe.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/vocab_data.h"

namespace kvring {

struct ChatFamily;

struct ChatMessage {
  std::string role;  // "system" (first only), "user" or "assistant"
  std::string content;
};

class ChatTemplate {
 public:
  // FAILED_PRECONDITION when the file has no template, UNIMPLEMENTED when it is of no known family; both name --raw.
  static absl::StatusOr<ChatTemplate> Recognize(const VocabData& vocab);

  // Control spellings and contents come as separate segments, so that a content is never read as a control (F09). With
  // add_generation_prompt the last segments open the assistant's turn. INVALID_ARGUMENT for an unknown role, a system message
  // that is not the first, or no message at all.
  absl::StatusOr<std::vector<Segment>> Render(const std::vector<ChatMessage>& messages,
                                              bool add_generation_prompt) const;

  const std::string& family() const { return name_; }                    // "chatml", "llama-3", ...
  const std::string& default_system() const { return default_system_; }  // empty: none

 private:
  ChatTemplate() = default;
  // Index of the user's message that takes the system message in; messages.size() when it stands by itself.
  size_t SystemPlace(const std::vector<ChatMessage>& messages) const;

  const ChatFamily* family_ = nullptr;
  std::string name_;
  std::string default_system_;  // used when the first message is not "system"
  std::string system_preface_;  // before every system message (Llama 3.1: dates)
  std::string bos_, eos_;       // spellings; empty when the vocabulary names none
  bool trims_ = false;
  bool emits_bos_ = false;      // the template itself brings the begin token
  bool bos_each_turn_ = false;  // ... in front of every exchange (Llama 2)
};

// The text of all segments in a row, as a person would read the prompt.
std::string JoinSegments(const std::vector<Segment>& segments);

}  // namespace kvring
