// SPDX-License-Identifier: Apache-2.0
// Token ids to printable text as they arrive: a character is held back until its last byte is there, and bytes that can no
// longer become a character turn into U+FFFD, one per maximal ill-formed part (Unicode 15, section 3.9). What Push and
// Finish return is always well-formed UTF-8. Control tokens print nothing. Not thread-safe; the tokenizer must outlive it.
#pragma once

#include <cstdint>
#include <string>

namespace kvring {

class Tokenizer;

class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  // The characters that `id` completes, possibly none. An id outside the vocabulary prints nothing.
  std::string Push(int32_t id);
  // What is still held back, as U+FFFD; the decoder is then as new.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  std::string held_;  // at most 3 bytes: the beginning of a character
};

}  // namespace kvring
