// SPDX-License-Identifier: Apache-2.0
// cos and sin of the middle of any page, and of the offsets from it, for the bias <q, RoPE_n(mean)> of packed
// attention. A page's number is split into three digits; each has a table whose angles were formed in double, and the
// product of three unit numbers in fp32 is as exact at position 10^7 as at 0 (three roundings).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hwy/aligned_allocator.h"
#include "kernels/rope.h"

namespace kvring {

// Immutable, thread-safe. attention_scale is not part of it.
class PageTurns {
 public:
  PageTurns(const RopeTable& table, int block_tokens);

  int stride() const { return stride_; }  // planes rounded up to 16
  const std::vector<double>& inv_freq() const { return inv_freq_; }

  // turn [2][stride]: cos, sin of position begin + (block - 1) / 2, begin a multiple of the block. False, and nothing written, beyond the tables:
  // from page 2^20 on (their angles would leave what SinCos covers).
  bool Turn(int64_t begin, float* turn) const;
  bool Covers(int64_t begin) const {
    return begin / block_ < int64_t{1} << (kBits[0] + kBits[1] + kBits[2]);
  }

  // 32767 times cosines and sines of offsets k + 1/2, k < block / 2: [stride / 2][2][block / 2][2], planes 2 g and 2 g + 1 a
  // pair. A cosine belongs to both offsets, a sine to the later one and with the other sign to the earlier.
  const int16_t* cosines() const { return offsets_.get(); }  // whole cache lines
  int Cosine(int plane, int k) const { return offsets_[At(plane, k)]; }
  int Sine(int plane, int k) const { return offsets_[At(plane, k) + block_]; }

 private:
  static constexpr int kDigits = 3;
  static constexpr int kBits[kDigits] = {6, 8,
                                         6};  // low digit first: virtual shards own every 64th page

  int64_t At(int plane, int k) const { return (plane / 2 * block_ + k) * 2 + plane % 2; }

  std::vector<double> inv_freq_;
  int block_, planes_, stride_;
  hwy::AlignedFreeUniquePtr<float[]> digit_[kDigits];  // [2^bits][2][stride]
  hwy::AlignedFreeUniquePtr<int16_t[]> offsets_;
};

// One PageTurns per layer, shared between layers of equal frequencies.
std::vector<std::shared_ptr<const PageTurns>> MakePageTurns(
    const std::vector<const RopeTable*>& rope, int block_tokens);

}  // namespace kvring
