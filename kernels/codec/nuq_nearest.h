// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvring {

// codes[i] = the j < count whose z[i] + s[i] * centroids[j] is nearest to x[i], in fp32, ties to the lower j (kvquant 4).
// The products and sums are those of UnpackRows, so that a residual is against the very number that is decoded.
// Vectors of n >= 16. The same bits on every instruction set. Thread-safe.
void NearestCodes(const float* x, const float* z, const float* s, int64_t n, const float* centroids,
                  int count, uint8_t* codes);

}  // namespace kvring
