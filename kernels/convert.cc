// SPDX-License-Identifier: Apache-2.0
#include "kernels/convert.h"

namespace kvring {

void HalfToFloat(const Half* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = HalfToFloat(x[i]);
}
void FloatToHalf(const float* x, int64_t n, Half* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = FloatToHalf(x[i]);
}
void FloatToHalfSaturated(const float* x, int64_t n, Half* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = FloatToHalfSaturated(x[i]);
}
void BFloat16ToFloat(const BFloat16* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = BFloat16ToFloat(x[i]);
}
void FloatToBFloat16(const float* x, int64_t n, BFloat16* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = FloatToBFloat16(x[i]);
}

void Transpose(const float* x, int64_t rows, int64_t columns, float* y) {
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) y[c * rows + r] = x[r * columns + c];
  }
}

}  // namespace kvring
