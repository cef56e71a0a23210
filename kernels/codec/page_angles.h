// SPDX-License-Identifier: Apache-2.0
// RoPE over a whole page at little cost: the angles of its first position in double, those of the others by angle addition
// with a table of offsets 0..block-1 in fp32. As exact at position 10^7 as at 0.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hwy/aligned_allocator.h"
#include "kernels/rope.h"

namespace kvring {

// Immutable, thread-safe. `table` outlives it.
class PageAngles {
 public:
  PageAngles(const RopeTable& table, int block_tokens);
  const RopeTable& table() const { return *table_; }
  int block_tokens() const { return block_; }
  // Of the offsets, [planes][block_tokens].
  const float* Cosines() const { return cos_.get(); }
  const float* Sines() const { return sin_.get(); }

  // base: [planes][2], RopeAngles of the page's first position.
  // tile [head_dim][block]: keys as columns, each rotated to its own position, in place.
  void RotateTile(const float* base, float* tile) const;

  // x: one vector of head_dim. Column t of `tile` = pre o RoPE(x at base + t) for t < tokens, zeros beyond.
  void SpreadTile(const float* base, const float* x, const float* pre, int tokens,
                  float* tile) const;

  // y = RoPE(x at base + offset): the same bits as SpreadTile without `pre`.
  void RotateAt(const float* base, int offset, const float* x, float* y) const;

 private:
  const RopeTable* table_;
  int block_;
  hwy::AlignedFreeUniquePtr<float[]> cos_, sin_;  // [planes][block]: whole cache lines
};

// One PageAngles per layer, shared between layers of equal frequencies.
std::vector<std::shared_ptr<const PageAngles>> MakePageAngles(
    const std::vector<const RopeTable*>& rope, int block_tokens);

}  // namespace kvring
