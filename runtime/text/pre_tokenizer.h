// SPDX-License-Identifier: Apache-2.0
// Cuts text into the words inside which BPE merges. A pre-tokenizer is a list of patterns: the first cuts the text, the next
// cuts each of its pieces as if it stood alone, and so on; text between two matches is a piece of its own.
// Immutable and thread-safe after Create; a Scratch belongs to one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "runtime/base/status.h"

namespace kvring {

struct PreTokenizerRow;

class PreTokenizer {
 public:
  // Match data and stack of the pattern library, reused from call to call.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class PreTokenizer;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };
  using Emit = std::function<void(const char* piece, size_t bytes)>;

  // UNIMPLEMENTED for a name that is not in the table; the message lists those that are.
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> Create(const std::string& name);
  ~PreTokenizer();

  // Calls `emit` for every piece of text[0, bytes) in order; the pieces cover the text. `text` must be well-formed UTF-8.
  // RESOURCE_EXHAUSTED when a match exceeds its limit or memory.
  absl::Status Split(const char* text, size_t bytes, Scratch& scratch, const Emit& emit) const;

  bool adds_bos() const;     // habit of this family where the file does not say
  bool whole_words() const;  // a word that is a token is taken as it is, without merging (Llama 3)

 private:
  struct Impl;
  explicit PreTokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvring
