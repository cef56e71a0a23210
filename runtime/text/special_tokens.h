// SPDX-License-Identifier: Apache-2.0
// Tokens that are spelled rather than merged: which of a vocabulary's tokens only templates may produce, which end an answer,
// and where such spellings occur in a text. Immutable and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/text/vocab_data.h"

namespace kvring {

// [tokens]: control by type, by role (bos, eos, ...), or by a spelling that chat templates use as a mark. Files are known
// that give such marks an ordinary type; trusting it would let a document end its own turn (F09).
std::vector<bool> ControlTokens(const VocabData& vocab);

// eos, eot, and the controls by which known families end a turn or a text; ascending.
std::vector<int32_t> EndOfGenerationTokens(const VocabData& vocab,
                                           const std::vector<bool>& is_control);

// Finds spellings in text, leftmost first, the longest of those that begin at one place.
class SpellingMatcher {
 public:
  struct Hit {
    size_t begin = 0;
    size_t bytes = 0;  // 0: none
    int32_t id = -1;
  };

  // The spellings of `ids`; empty ones are ignored.
  SpellingMatcher(const VocabData& vocab, const std::vector<int32_t>& ids);
  ~SpellingMatcher();

  // The first hit in text[from, bytes).
  Hit Find(const char* text, size_t bytes, size_t from) const;
  // The token spelled exactly so, or -1.
  int32_t Lookup(const std::string& spelling) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvring
