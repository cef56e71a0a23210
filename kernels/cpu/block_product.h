// SPDX-License-Identifier: Apache-2.0
// Products of int8 activation rows with panels of block weights: 32 columns at a time. Private to kernels/.
#pragma once

#include <cstdint>

namespace kvring {

inline constexpr int64_t kBlockNumbers = 32;  // activations under one scale
inline constexpr int64_t kPanelColumns = 32;

// Activations of one block and what every output needs to know of them.
struct ActivationBlock {
  int8_t q[kBlockNumbers];
  float scale;
  float scaled_sum;  // scale * sum of q
  int32_t sums[2];   // of both halves of q
};

// A row of activations: `blocks` blocks, and room that keeps rows out of each other's cache sets.
struct ActivationRow {
  int64_t blocks;
  int64_t bytes() const {
    return ((blocks * static_cast<int64_t>(sizeof(ActivationBlock)) + 63) & -64) | 64;
  }
};

// x [in] to a row: q = round(x * 127 / max|x|) of each block, ties to even; scale = max|x| / 127. Numbers beyond `in` are zeros. A block with a NaN or an infinity has a NaN scale.
void QuantizeActivations(const float* x, int64_t in, uint8_t* row);

// How a panel lies in memory: blocks one after the other, so that it is read as one stream. A block:
//   codes   [words][32 columns] of four bytes: 8 words at 8 bits (numbers 4 w .. 4 w + 3), 4 words at 4 bits (low
//           halves numbers 8 w .. 8 w + 3, high halves 8 w + 4 .. 8 w + 7);
//   scales  [groups][32 columns], fp16 or fp32;
//   offsets likewise, where there are any.
struct PanelForm {
  int64_t blocks = 0;
  int bits = 8;
  int group = 32;
  int zero = 0;
  bool half = true;  // scales and offsets as fp16
  bool offset = false;

  int64_t groups() const { return kBlockNumbers / group; }  // of a block
  int64_t code_bytes() const { return kBlockNumbers * kPanelColumns * bits / 8; }
  int64_t scale_bytes() const { return groups() * kPanelColumns * (half ? 2 : 4); }
  int64_t block_bytes() const { return code_bytes() + scale_bytes() * (offset ? 2 : 1); }
  int64_t bytes() const { return blocks * block_bytes(); }
};

// y[r][c] for c < columns <= 32, r < rows. rows_at: `rows` activation rows. Few rows read the panel as it is, many take it
// apart once into memory of this thread; bits are the same. What lies between the panel and `end` is read next: it is
// fetched ahead.
void MultiplyPanel(const PanelForm& form, const uint8_t* panel, const uint8_t* end,
                   const uint8_t* rows_at, int64_t rows, float* y, int64_t ldy, int64_t columns);

}  // namespace kvring
