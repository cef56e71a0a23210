// SPDX-License-Identifier: Apache-2.0
// How many outliers the blocks of one KV head have, and how many slots of a page they deserve: the fixed-slot container
// (kvquant spec 5.2) with a size of its own for each layer, head and side.
#pragma once

#include <cstdint>
#include <vector>

namespace kvring {

class SlotCounts {
 public:
  explicit SlotCounts(int block_tokens) : block_tokens_(block_tokens) {}

  // Outliers of the next token of a window; position 0 begins a window. Only complete blocks count for slots.
  void AddToken(int64_t position, int outliers);
  // A sink: it takes a place in its block and has no outliers.
  void AddSink(int64_t position);

  // The smallest even number of slots, at least two, that leaves at most kOverflowShare of this head's outliers without one.
  int64_t Slots() const;
  double MeanOutliers() const;  // of a token that is no sink

  int64_t bytes() const { return static_cast<int64_t>(blocks_.size() * sizeof(int64_t)); }

 private:
  void Place(int64_t position, int outliers);
  int block_tokens_;
  int64_t open_ = 0;             // outliers of the block that is being filled
  std::vector<int64_t> blocks_;  // [outliers]: blocks that had so many
  int64_t tokens_ = 0, outliers_ = 0;
};

// An outlier without a slot saturates: it errs by what lies beyond the threshold. Without outliers all of them do, so one in
// a hundred loses about a hundredth of what they gain, and a page need not be as large as the fullest block ever seen.
inline constexpr double kOverflowShare = 0.01;

}  // namespace kvring
