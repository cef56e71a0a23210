// SPDX-License-Identifier: Apache-2.0
// A complete byte-level BPE vocabulary of any size from 259 up: three control tokens, the 256 byte tokens in GPT-2's
// spelling, then merges that build common English words letter by letter, then unused tokens up to the size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace kvring {

class GgufWriter;

struct TinyVocab {
  static constexpr int32_t kEndOfText = 0, kImStart = 1, kImEnd = 2;  // SmolLM2's order
  static constexpr int kControls = 3;
  static constexpr int kLeast = kControls + 256;

  std::vector<std::string> tokens;
  std::vector<int32_t> types;       // tokenizer.ggml.token_type
  std::vector<std::string> merges;  // "left right", best first
};

// size >= TinyVocab::kLeast, checked by the caller.
TinyVocab MakeTinyVocab(int size);

// Sets every tokenizer.* key: model gpt2, pre smollm, ids, a ChatML template.
void WriteTinyVocab(const TinyVocab& vocab, GgufWriter& writer);

}  // namespace kvring
