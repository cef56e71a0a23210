// SPDX-License-Identifier: Apache-2.0
// The SIMD bodies of backward.h that go row by row, one thread. Private to kernels/.
#pragma once

#include <cstdint>

namespace kvring {

// gate and up become their gradients.
void SwiGluBackwardSpan(float* gate, float* up, const float* dy, int64_t n);

// x becomes weight * softmax(x); returns log(sum exp(x)) of what x was.
double SoftmaxInPlace(float* x, int64_t n, float weight);

}  // namespace kvring
