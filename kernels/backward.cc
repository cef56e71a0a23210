// SPDX-License-Identifier: Apache-2.0
#include "kernels/backward.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/backward_rows.h"
#include "kernels/parallel.h"

namespace kvring {
namespace {

constexpr int64_t kRowsPerTask = 16;

void RmsNormBackwardRow(const float* x, const float* w, float epsilon, const float* dy, int64_t n,
                        float* dx) {
  double squares = 0, inner = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double v = x[i];
    squares += v * v;
    inner += v * w[i] * dy[i];
  }
  const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + epsilon);
  const auto s = static_cast<float>(scale);
  const auto t = static_cast<float>(scale * scale * scale * inner / static_cast<double>(n));
  for (int64_t i = 0; i < n; ++i) dx[i] += s * w[i] * dy[i] - t * x[i];
}

template <class Row>
void ForRows(int64_t rows, int64_t rows_a_task, const Row& row) {
  ParallelFor((rows + rows_a_task - 1) / rows_a_task, [&](int64_t task) {
    const int64_t first = task * rows_a_task;
    for (int64_t r = first; r < std::min(rows, first + rows_a_task); ++r) row(r);
  });
}

}  // namespace

void RmsNormBackward(const float* x, const float* weight, float epsilon, const float* dy,
                     int64_t rows, int64_t n, float* dx) {
  ForRows(rows, kRowsPerTask, [&](int64_t r) {
    RmsNormBackwardRow(x + r * n, weight, epsilon, dy + r * n, n, dx + r * n);
  });
}

void SwiGluBackward(float* gate_up, const float* dy, int64_t rows, int64_t ffn) {
  ForRows(rows, kRowsPerTask, [&](int64_t r) {
    float* gate = gate_up + r * 2 * ffn;
    SwiGluBackwardSpan(gate, gate + ffn, dy + r * ffn, ffn);
  });
}

void CrossEntropyBackward(float* logits, const int32_t* targets, float weight, int64_t rows,
                          int64_t vocab, double* losses) {
  ForRows(rows, 1, [&](int64_t r) {
    float* row = logits + r * vocab;
    const double target = row[targets[r]];
    losses[r] = SoftmaxInPlace(row, vocab, weight) - target;
    row[targets[r]] -= weight;
  });
}

}  // namespace kvring
