// SPDX-License-Identifier: Apache-2.0
// cos and sin of the middle of any page, and the basis in which the bias <q, RoPE_n(mean)> of packed attention is a short sum
// for the slots of a page.
//
// Middles: a page's number is split into three digits; each has a table whose angles were formed in double, and the
// product of three unit numbers in fp32 is as exact at position 10^7 as at 0 (three roundings).
//
// Basis: with re, im turned to the middle, a plane of frequency w adds re cos(w x) + im sin(w x) at offset x from it. Planes
// that turn little within half a page are powers of x instead, all together: cos(w x) = 1 - (w x)^2 / 2 and
// sin(w x) = w x - (w x)^3 / 6 to less than a unit of the table.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
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

  // turn [n][2][stride]: cos, sin of position begin + (block - 1) / 2 of n pages, begin a multiple of the block. Returns how
  // many were written: fewer than n where one lies beyond the tables, from page 2^20 on (their angles would leave what SinCos
  // covers).
  int64_t Turn(std::span<const int64_t> begins, float* turn) const;
  bool Covers(int64_t begin) const {
    return begin / block_ < int64_t{1} << (kBits[0] + kBits[1] + kBits[2]);
  }

  // Planes from here on, a multiple of 16, are powers: even ones 1 and (x / e)^2, odd ones x / e and (x / e)^3, e the offset of the
  // page's last slot. stride() when none is.
  int folded() const { return folded_; }
  // What a unit of re (powers 0 and 1) or im (2 and 3) of a folded plane adds to 1, (x / e)^2, x / e, (x / e)^3:
  // [4][stride - folded].
  const float* fold() const { return fold_.get(); }

  static constexpr int kFoldedFunctions = 2;  // of each parity
  int functions() const { return folded_ + (folded_ < stride_ ? kFoldedFunctions : 0); }
  // 32767 times the even and the odd functions at offsets k + 1/2, k < block / 2: [functions / 2][2][block / 2][2], functions 2 g
  // and 2 g + 1 a pair. Even ones belong to both offsets, odd ones to the later and with the other sign to the earlier. Whole
  // cache lines.
  const int16_t* offsets() const { return offsets_.get(); }
  int Even(int function, int k) const { return offsets_[At(function, k)]; }
  int Odd(int function, int k) const { return offsets_[At(function, k) + block_]; }

 private:
  static constexpr int kDigits = 3;
  static constexpr int kBits[kDigits] = {6, 8,
                                         6};  // low digit first: virtual shards own every 64th page

  int64_t At(int function, int k) const { return (function / 2 * block_ + k) * 2 + function % 2; }
  void FillDigits();
  void FillOffsets();
  void FillFold();

  std::vector<double> inv_freq_;
  int block_, planes_, stride_, folded_;
  hwy::AlignedFreeUniquePtr<float[]> digit_[kDigits];  // [2^bits][2][stride]
  hwy::AlignedFreeUniquePtr<int16_t[]> offsets_;
  hwy::AlignedFreeUniquePtr<float[]> fold_;
};

// One PageTurns per layer, shared between layers of equal frequencies.
std::vector<std::shared_ptr<const PageTurns>> MakePageTurns(
    const std::vector<const RopeTable*>& rope, int block_tokens);

}  // namespace kvring
