// SPDX-License-Identifier: Apache-2.0
// Rows of numbers as int8 with one scale a row, and integer sums back to fp32. Private to kernels/.
#pragma once

#include <cstdint>

namespace kvring {

// q = round(x * 127 / max|x|), ties to even, in [-127, 127]; scale = max|x| / 127, so x = q * scale + e, |e| <= scale / 2.
// A row of zeros has scale 0. A row with a NaN or an infinity gets a NaN scale, which every sum then shows.
void QuantizeRows(const float* x, int64_t rows, int64_t n, int8_t* q, float* scales);

// y[r][c] = sums[r][c] * (row_scales[r] * column_scales[c]); sums dense, y [rows][ldy].
void ScaleSums(const int32_t* sums, int64_t rows, int64_t columns, const float* row_scales,
               const float* column_scales, float* y, int64_t ldy);

}  // namespace kvring
