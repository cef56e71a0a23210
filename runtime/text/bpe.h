// SPDX-License-Identifier: Apache-2.0
// Byte-pair merges (Sennrich et al. 2016) in O(n log n): a heap of candidate pairs over a linked list of symbols; the best
// rank first, the leftmost of equals. Immutable and thread-safe after Create; a Scratch belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/vocab_data.h"

namespace kvring {

class BpeModel {
 public:
  class Scratch {  // work space, and the ids of short words seen before
   public:
    Scratch();
    ~Scratch();

   private:
    friend class BpeModel;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  // `reachable[id]`: plain text may become this token (F09). INVALID_ARGUMENT for a merge that cannot be read, naming it.
  static absl::StatusOr<std::unique_ptr<BpeModel>> Create(const VocabData& vocab,
                                                          const std::vector<bool>& reachable,
                                                          bool whole_words);
  ~BpeModel();

  // Appends the ids of one word, any bytes, bytes < 2^31. Returns how many bytes no token expresses; they are left out.
  int64_t Encode(const char* word, size_t bytes, Scratch& scratch, std::vector<int32_t>* ids) const;

  int num_byte_tokens() const;  // of 256

 private:
  struct Impl;
  explicit BpeModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvring
