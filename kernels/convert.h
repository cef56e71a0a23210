// SPDX-License-Identifier: Apache-2.0
// Bulk conversions between fp32 and 16-bit floats, and a transpose. Bit for bit the scalar forms of half.h.
#pragma once

#include <cstdint>

#include "kernels/half.h"

namespace kvring {

void HalfToFloat(const Half* x, int64_t n, float* y);
void FloatToHalf(const float* x, int64_t n, Half* y);
// Beyond fp16's range: the largest finite value. NaN stays NaN.
void FloatToHalfSaturated(const float* x, int64_t n, Half* y);
void BFloat16ToFloat(const BFloat16* x, int64_t n, float* y);
void FloatToBFloat16(const float* x, int64_t n, BFloat16* y);

// y[c][r] = x[r][c]; both dense, x [rows][columns], y [columns][rows].
void Transpose(const float* x, int64_t rows, int64_t columns, float* y);

}  // namespace kvring
