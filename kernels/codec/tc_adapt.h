// SPDX-License-Identifier: Apache-2.0
// What `tc:adapt` keeps of a sequence: the calibrated basis turned to the sequence's own covariance, from its tokens 4..511
// (rotated-and-transform 4). Sums are fp32 in token order per block, blocks are folded in block order in double, the
// eigenproblem is solved in double by one thread: no split of the tokens over calls or ranks changes a bit.
//
// With y = (x - mean) A of the tables and n = 508 tokens: C = sum y y^t / n, M = (n C + 512 diag(lambda)) / (n + 512) =
// U diag(lambda') U^t, falling. Coefficients are y U with deviations sqrt(lambda'); bits stay as calibrated. Keys count at
// positions spread over the served context (token t at t * served / 512): their covariance after RoPE is that of all the
// places where keys will be, not of the first 512.
//
// Sums of one (KV head, block): upper triangles of y y^t, row by row, of keys, then of values. State: U [dk][dk], deviations
// [dk], U [dv][dv], deviations [dv], each fp16-representable. A side whose table is a plain rotation keeps U = I.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/codec.h"
#include "kernels/codec/tc_model.h"

namespace kvring {

inline constexpr int kTcPrefix =
    512;  // tokens after which the state is frozen, and the weight of the tables in it
inline constexpr int kTcSinks = 4;  // first tokens of a sequence, read exact

// One side of a state; null members: none.
struct TcTurn {
  const float* basis = nullptr;      // [dim][dim]
  const float* deviation = nullptr;  // [dim]
};

class TcAdapt {
 public:
  TcAdapt(std::shared_ptr<const TcModel> model, const KvShape& shape,
          const std::vector<const RopeTable*>& rope);

  int64_t SumFloats() const { return Triangle(shape_.dk) + Triangle(shape_.dv); }
  int64_t StateFloats() const { return SideFloats(shape_.dk) + SideFloats(shape_.dv); }

  void Observe(const ObserveArgs& args, float* sums) const;
  void Freeze(int layer, int head, std::span<const float* const> block_sums, float* state) const;

  TcTurn Key(const float* state) const { return At(state, shape_.dk); }
  TcTurn Value(const float* state) const {
    return At(state == nullptr ? nullptr : state + SideFloats(shape_.dk), shape_.dv);
  }

 private:
  static int64_t Triangle(int64_t dim) { return dim * (dim + 1) / 2; }
  static int64_t SideFloats(int64_t dim) { return dim * dim + dim; }
  static TcTurn At(const float* state, int64_t dim) {
    return state == nullptr ? TcTurn{} : TcTurn{state, state + dim * dim};
  }

  std::shared_ptr<const TcModel> model_;
  KvShape shape_;
  std::vector<const RopeTable*> rope_;  // [layers]
};

}  // namespace kvring
