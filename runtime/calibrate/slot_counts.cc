// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/slot_counts.h"

#include <algorithm>

namespace kvring {

void SlotCounts::Place(int64_t position, int outliers) {
  if (position % block_tokens_ == 0) open_ = 0;
  open_ += outliers;
  if ((position + 1) % block_tokens_ != 0) return;
  if (static_cast<int64_t>(blocks_.size()) <= open_) blocks_.resize(open_ + 1);
  ++blocks_[open_];
}

void SlotCounts::AddToken(int64_t position, int outliers) {
  Place(position, outliers);
  ++tokens_;
  outliers_ += outliers;
}

void SlotCounts::AddSink(int64_t position) { Place(position, 0); }

int64_t SlotCounts::Slots() const {
  int64_t all = 0;
  for (size_t n = 0; n < blocks_.size(); ++n) all += static_cast<int64_t>(n) * blocks_[n];
  // From the fullest block down: each slot less leaves one outlier of every block that had more.
  int64_t slots = std::max<int64_t>(1, static_cast<int64_t>(blocks_.size()) - 1);
  int64_t fuller = 0, left_out = 0;
  while (slots > 1) {
    fuller += blocks_[slots];
    if (static_cast<double>(left_out + fuller) > kOverflowShare * static_cast<double>(all)) break;
    left_out += fuller;
    --slots;
  }
  return slots + slots % 2;  // a slot is four bytes, and pages are made of eight
}

double SlotCounts::MeanOutliers() const {
  return tokens_ > 0 ? static_cast<double>(outliers_) / static_cast<double>(tokens_) : 0.0;
}

}  // namespace kvring
