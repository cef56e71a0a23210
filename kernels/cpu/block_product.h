// SPDX-License-Identifier: Apache-2.0
// Products of int8 activation rows with panels of block weights: 32 columns at a time. Private to kernels/.
#pragma once

#include <cstdint>

namespace kvring {

inline constexpr int64_t kBlockNumbers = 32;  // activations under one scale
inline constexpr int64_t kPanelColumns = 32;

// A row of activations: `blocks` blocks, one array after the other.
struct ActivationRow {
  int64_t blocks;
  int64_t scales_at() const { return blocks * kBlockNumbers; }           // float [blocks]
  int64_t scaled_sums_at() const { return scales_at() + blocks * 4; }    // float [blocks]
  int64_t sums_at() const { return scaled_sums_at() + blocks * 4; }      // int32 [blocks][2]
  int64_t bytes() const { return (sums_at() + blocks * 8 + 63) & -64; }  // int8 [blocks][32] first
};

// x [in] to a row: q = round(x * 127 / max|x|) of each block, ties to even; scale = max|x| / 127; sums of both halves of
// each block's q; scaled sum = scale * sum. Numbers beyond `in` are zeros. A block with a NaN or an infinity has a NaN scale.
void QuantizeActivations(const float* x, int64_t in, uint8_t* row);

// How a panel lies in memory, in this order:
//   codes   [blocks][words][32 columns] of four bytes: 8 words at 8 bits (numbers 4 w .. 4 w + 3), 4 words at 4 bits (low
//           halves numbers 8 w .. 8 w + 3, high halves 8 w + 4 .. 8 w + 7);
//   scales  [blocks * groups a block][32 columns], fp16 or fp32;
//   offsets likewise, where there are any.
struct PanelForm {
  int64_t blocks = 0;
  int bits = 8;
  int group = 32;
  int zero = 0;
  bool half = true;  // scales and offsets as fp16
  bool offset = false;

  int64_t code_bytes() const { return blocks * kBlockNumbers * kPanelColumns * bits / 8; }
  int64_t scale_bytes() const {
    return blocks * (kBlockNumbers / group) * kPanelColumns * (half ? 2 : 4);
  }
  int64_t bytes() const { return code_bytes() + scale_bytes() * (offset ? 2 : 1); }
};

// y[r][c] for c < columns <= 32, r < rows. rows_at: `rows` activation rows. Few rows read the panel as it is, many take it
// apart once into memory of this thread; bits are the same.
void MultiplyPanel(const PanelForm& form, const uint8_t* panel, const uint8_t* rows_at,
                   int64_t rows, float* y, int64_t ldy, int64_t columns);

}  // namespace kvring
