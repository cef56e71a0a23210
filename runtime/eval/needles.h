// SPDX-License-Identifier: Apache-2.0
// Texts with sentences planted in them that can be asked for: does a cache still hold what was said long ago? (The
// pass-key task of Mohtashami and Jaggi, arXiv:2305.16300, with several keys a text and words instead of digits.)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/text/tokenizer.h"

namespace kvring {

struct NeedleOptions {
  int texts = 20;
  int depths = 10;        // sentences planted in each text, evenly spread
  int64_t length = 2048;  // tokens of a text with its sentences, one question and its answer
  uint64_t seed = 0;      // of keys and phrases
};

// "The pass-phrase of the <key> is <phrase>."
struct Needle {
  std::string key, phrase;
  std::vector<int32_t> sentence;  // as planted
  std::vector<int32_t> question;  // up to "is", on a line of its own at the end of the text
  std::vector<int32_t> answer;    // the phrase's tokens
  int64_t offset = 0;             // tokens of the excerpt before it
  int64_t position = 0;           // of its first token in the text
};

struct NeedleText {
  std::vector<int32_t> excerpt;  // the text without its sentences
  std::vector<int32_t> ids;      // with them
  std::vector<Needle> needles;   // in order of position
};

// Largest number of sentences in one text: so many different keys there are.
int MaxDepths();

// Consecutive excerpts of `ids` from its beginning on; every token of an excerpt is kept. Sentence j stands at the sentence border
// nearest to depth (j + 1/2) / depths, within its share of the excerpt; where a share has no border, at its middle.
// INVALID_ARGUMENT: the text is too short, or `length` for so many sentences (with both numbers). Same arguments, same texts.
absl::StatusOr<std::vector<NeedleText>> PlantNeedles(const Tokenizer& tokenizer,
                                                     const std::vector<int32_t>& ids,
                                                     const NeedleOptions& options);

}  // namespace kvring
