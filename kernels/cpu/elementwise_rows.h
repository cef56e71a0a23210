// SPDX-License-Identifier: Apache-2.0
// The SIMD bodies of elementwise.h, one thread. Private to kernels/.
#pragma once

#include <cstdint>

namespace kvring {

void RmsNormRows(const float* x, const float* weight, float epsilon, int64_t rows, int64_t n,
                 float* y);
int64_t ArgMaxSpan(const float* x, int64_t n);
void SwiGluSpan(const float* gate, const float* up, int64_t n, float* y);

}  // namespace kvring
