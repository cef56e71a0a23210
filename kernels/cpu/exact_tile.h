// SPDX-License-Identifier: Apache-2.0
// Exact rows, fp16 with a token's channels side by side, as key tiles. Private to kernels/.
#pragma once

#include <cstdint>

#include "kernels/half.h"
#include "kernels/rope.h"

namespace kvring {

// Tokens that are transposed together: tiles have this many more columns than there are rows at most.
inline constexpr int64_t kExactColumns = 16;

// kt[c][t] = x[t][c] for t < rows; columns from `rows` up to the next multiple of kExactColumns are zeros, others stay.
// x: [rows][stride], kt: [columns][ld], ld a multiple of kExactColumns.
void TransposeHalves(const Half* x, int64_t stride, int64_t rows, int64_t columns, Half* kt,
                     int64_t ld);

// y[i] = x[i]. Finite numbers only, which the hardware converts as half.h does.
void WidenHalves(const Half* x, int64_t n, float* y);

// RopeRotate of each column, to the same bits, on its way to fp32. angles: [planes][2][ld], cosines and sines of the columns.
// Columns [0, count) of tiles [head_dim][ld], count a multiple of kExactColumns.
void RotateHalves(const RopeTable& table, const float* angles, const Half* kt, int64_t count,
                  int64_t ld, float* out);

}  // namespace kvring
