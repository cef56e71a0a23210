// SPDX-License-Identifier: Apache-2.0
// A tokenizer's data as a model file carries it, without the file: what runtime/model reads and runtime/text uses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvring {

// Values of tokenizer.ggml.token_type.
enum class TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct VocabData {
  std::string model;  // "gpt2" (byte-level BPE), "llama" (SentencePiece), ...
  std::string pre;    // "smollm", "gpt-2", "llama-bpe", "qwen2", ...; empty when absent
  std::vector<std::string> tokens;
  std::vector<TokenType> types;                              // as long as tokens
  std::vector<std::string> merges;                           // "left right", best first
  std::vector<float> scores;                                 // may be empty
  int32_t bos = -1, eos = -1, eot = -1, unk = -1, pad = -1;  // -1: absent
  std::optional<bool> add_bos, add_eos;                      // absent: the family's habit
  std::string chat_template;                                 // empty when absent
};

}  // namespace kvring
