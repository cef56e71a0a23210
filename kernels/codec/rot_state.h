// SPDX-License-Identifier: Apache-2.0
// What `rot` keeps of a sequence: the mean of its keys before RoPE and one balance factor per RoPE plane, from tokens
// 4..127 (rotated-and-transform 2). Sums are fp32 in token order per block, blocks are folded in block order in double:
// no split of the tokens over calls or ranks changes a bit.
//
// Sums of one (KV head, block): [dk] sum of k, [planes] sum of |k_p|^2, [planes] sum of |q_p|^2 over the group's heads.
// Planes: RoPE's, then each channel that is not rotated. State: mu [dk] unless no-mean, w [planes] unless no-balance.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/codec.h"

namespace kvring {

inline constexpr int kRotSinks = 4;
inline constexpr int kRotPrefix = 128;

class RotState {
 public:
  // rope: any layer's table; pairing and rotated channels are the same in all layers, frequencies may differ.
  RotState(const KvShape& shape, const RopeTable& rope, bool mean, bool balance);

  bool mean() const { return mean_; }
  int64_t SumFloats() const { return floats() == 0 ? 0 : shape_.dk + 2 * planes_; }
  int64_t floats() const { return (mean_ ? shape_.dk : 0) + (balance_ ? planes_ : 0); }

  void Observe(const ObserveArgs& args, float* sums) const;
  void Freeze(std::span<const float* const> block_sums, float* state) const;

  // mu [dk]: null when there is none. Weights: w of each channel's plane, [dk]; ones when there is none.
  const float* Mean(const float* state) const { return mean_ ? state : nullptr; }
  void Weights(const float* state, float* weights) const;

 private:
  void ObserveToken(const float* k, const float* q, float* sums) const;
  void FreezeBalance(const std::vector<double>& sums, const float* mean, float* weights) const;

  KvShape shape_;
  int planes_;  // rotated planes and lone channels
  bool mean_, balance_;
  std::vector<int> plane_of_;  // [dk]
};

}  // namespace kvring
