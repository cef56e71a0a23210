// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/quantize_rows.h"

#include <algorithm>
#include <cmath>

namespace kvring {

void QuantizeRows(const float* x, int64_t rows, int64_t n, int8_t* q, float* scales) {
  for (int64_t r = 0; r < rows; ++r, x += n, q += n) {
    float most = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
      const float a = std::fabs(x[i]);
      most = a > most || std::isnan(a) ? a : most;
      if (std::isnan(most)) break;
    }
    const bool finite = std::isfinite(most);
    scales[r] = finite ? most / 127.0f : NAN;
    const float inverse = finite && most > 0.0f ? 127.0f / most : 0.0f;
    for (int64_t i = 0; i < n; ++i) {
      const float scaled = finite ? std::nearbyint(x[i] * inverse) : 0.0f;
      q[i] = static_cast<int8_t>(std::clamp(scaled, -127.0f, 127.0f));
    }
  }
}

void ScaleSums(const int32_t* sums, int64_t rows, int64_t columns, const float* row_scales,
               const float* column_scales, float* y, int64_t ldy) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      y[r * ldy + c] =
          static_cast<float>(sums[r * columns + c]) * (row_scales[r] * column_scales[c]);
    }
  }
}

}  // namespace kvring
