// SPDX-License-Identifier: Apache-2.0
// Row-wise operations of a transformer. Every row's result depends on that row alone. Dense fp32 rows.
#pragma once

#include <cstdint>

namespace kvring {

// y[r] = x[r] / sqrt(mean(x[r]^2) + epsilon) * weight; [rows][n], y may be x. The sum is in fixed order, fp32 pairs.
void RmsNorm(const float* x, const float* weight, float epsilon, int64_t rows, int64_t n, float* y);

// y[i] = silu(gate[i]) * up[i]; y may be gate.
void SwiGlu(const float* gate, const float* up, int64_t n, float* y);

// x[i] += y[i]
void AddInPlace(float* x, const float* y, int64_t n);

// Index of the largest of n > 0 numbers, the lowest among equals; NaN is never it, but where all are.
int64_t ArgMax(const float* x, int64_t n);

// log(sum exp(x)) of one row in double: what losses and probabilities start from.
double LogSumExp(const float* x, int64_t n);

}  // namespace kvring
