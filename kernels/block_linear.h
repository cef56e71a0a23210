// SPDX-License-Identifier: Apache-2.0
// Linear layers that multiply the model file's blocks as they are: small integers under one scale. Activations are rounded
// to int8 under one scale per 32 numbers of a row; sums of a block are exact integers, and the blocks of an output are
// added in ascending order with the same fp32 steps for every number of rows, so that the row law (linear.h) holds by
// construction. Weights stay at 4 bits where the file has 4.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/linear.h"

namespace kvring {

// Rows of weights: w[r][i] = scale * (code - zero) + offset.
struct BlockWeights {
  int64_t rows = 0;
  int bits = 8;                // 4: codes 0 to 15; 8: any int8
  int group = 32;              // numbers under one scale: 32, or 16 (8 bits, no offsets)
  int zero = 0;                // 4 bits only
  std::vector<int8_t> codes;   // [rows][in]
  std::vector<float> scales;   // [rows][groups], groups = in / group rounded up
  std::vector<float> offsets;  // likewise, or empty
};

// Rows of the parts one after the other; parts may differ in form. Copies (packs) what it needs.
std::unique_ptr<Linear> MakeBlockLinear(const std::vector<BlockWeights>& parts, int64_t in);

// Numbers that have no codes, rounded to int8 under one scale per 32: w [rows][in] fp32.
BlockWeights RoundToBlocks(const float* w, int64_t rows, int64_t in);

// The same steps in plain loops (std::fma where the fast form fuses). Equal in bits to the fast form on every instruction
// set with fused multiply-add.
std::unique_ptr<Linear> MakeBlockLinearRef(const std::vector<BlockWeights>& parts, int64_t in);

}  // namespace kvring
