// SPDX-License-Identifier: Apache-2.0
// Packed attention of the rot codecs: what kernels/cpu/attend_packed.h needs, taken from a page of `rot` and the sequence's
// state. Sinks are a tile of exact rows; the other slots are read as codes.
#pragma once

#include <memory>
#include <vector>

#include "kernels/attention.h"
#include "kernels/codec/packed_reader.h"

namespace kvring {

struct RotReaderOptions {
  PackedForm form;
  int block_tokens = 64;
  bool grouped = false;                   // more than one scale a side
  int64_t k_word_bytes = 0, k_bytes = 0;  // of a page's K part: codes, all
  int64_t v_word_bytes = 0;               // codes of its V part
  std::vector<const RopeTable*> rope;     // [layers], outlive the reader
};

// Immutable, thread-safe.
class RotReader {
 public:
  explicit RotReader(const RotReaderOptions& options);

  // mean: [dk] before RoPE, null for none. False when this shape is read as tiles (blocks other than 64 tokens, several scales
  // a vector, head sizes that are no multiple of 32).
  bool Prepare(const AttendArgs& args, const float* mean, PackedQueries& queries) const;
  int64_t Attend(const AttendArgs& args, std::span<const PageView> pages, int64_t first,
                 int64_t last, const float* mean, AttendScratch& scratch,
                 const SoftmaxPartial& partial) const;

 private:
  void AttendPlain(const AttendArgs& args, const PageView& page, int64_t first, int64_t last,
                   const float* mean, const SoftmaxPartial& partial) const;

  RotReaderOptions options_;
  bool fits_;
  std::vector<std::shared_ptr<const PageTurns>> turns_;  // [layers], empty when it does not fit
};

}  // namespace kvring
