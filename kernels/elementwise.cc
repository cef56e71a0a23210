// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/elementwise_rows.h"
#include "kernels/parallel.h"

namespace kvring {
namespace {

// Below this many floats a second thread costs more than it gives (measured at about 20 us a fork).
constexpr int64_t kParallelFloats = 64 * 1024;
constexpr int64_t kTaskFloats = 16 * 1024;

}  // namespace

void RmsNorm(const float* x, const float* weight, float epsilon, int64_t rows, int64_t n,
             float* y) {
  const int64_t rows_a_task =
      rows * n < kParallelFloats ? rows : std::max<int64_t>(1, kTaskFloats / n);
  if (rows == 0) return;
  ParallelFor((rows + rows_a_task - 1) / rows_a_task, [&](int64_t task) {
    const int64_t first = task * rows_a_task;
    RmsNormRows(x + first * n, weight, epsilon, std::min(rows_a_task, rows - first), n,
                y + first * n);
  });
}

void SwiGlu(const float* gate, const float* up, int64_t n, float* y) {
  const int64_t piece = n < kParallelFloats ? std::max<int64_t>(n, 1) : kTaskFloats;
  ParallelFor((n + piece - 1) / piece, [&](int64_t task) {
    const int64_t first = task * piece;
    SwiGluSpan(gate + first, up + first, std::min(piece, n - first), y + first);
  });
}

void AddInPlace(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

int64_t ArgMax(const float* x, int64_t n) { return ArgMaxSpan(x, n); }

double LogSumExp(const float* x, int64_t n) {
  const double max = *std::max_element(x, x + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(x[i]) - max);
  return max + std::log(sum);
}

}  // namespace kvring
