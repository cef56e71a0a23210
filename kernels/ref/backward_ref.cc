// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/backward_ref.h"

#include <algorithm>
#include <cmath>

namespace kvring {
namespace {

double Dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Softmax weights of one query over keys 0..row.
Doubles Weights(const CausalRefInput& in, int64_t row, int head) {
  const CausalShape& s = in.shape;
  const double* q = in.q.data() + (row * s.query_heads + head) * s.dk;
  Doubles p(static_cast<size_t>(row + 1));
  for (int64_t j = 0; j <= row; ++j) {
    const double* k = in.k.data() + (j * s.kv_heads + head / s.group()) * s.dk;
    p[j] = Dot(q, k, s.dk) / std::sqrt(static_cast<double>(s.dk));
  }
  const double max = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - max);
  for (double& x : p) x /= sum;
  return p;
}

}  // namespace

Doubles RmsNormBackwardRef(const Doubles& x, const Doubles& weight, double epsilon,
                           const Doubles& dy) {
  const auto n = static_cast<int64_t>(weight.size());
  Doubles dx(x.size());
  for (size_t r = 0; r < x.size(); r += n) {
    const double s = 1 / std::sqrt(Dot(&x[r], &x[r], n) / static_cast<double>(n) + epsilon);
    double inner = 0;
    for (int64_t i = 0; i < n; ++i) inner += weight[i] * dy[r + i] * x[r + i];
    for (int64_t i = 0; i < n; ++i) {
      dx[r + i] = s * weight[i] * dy[r + i] - x[r + i] * s * s * s * inner / static_cast<double>(n);
    }
  }
  return dx;
}

SwiGluGradients SwiGluBackwardRef(const Doubles& gate, const Doubles& up, const Doubles& dy) {
  SwiGluGradients out{Doubles(gate.size()), Doubles(gate.size())};
  for (size_t i = 0; i < gate.size(); ++i) {
    const double s = 1 / (1 + std::exp(-gate[i]));
    out.gate[i] = dy[i] * up[i] * s * (1 + gate[i] * (1 - s));
    out.up[i] = dy[i] * gate[i] * s;
  }
  return out;
}

Doubles CausalAttentionRef(const CausalRefInput& in) {
  const CausalShape& s = in.shape;
  Doubles out(static_cast<size_t>(s.rows * s.query_heads * s.dv));
  for (int64_t r = 0; r < s.rows; ++r) {
    for (int head = 0; head < s.query_heads; ++head) {
      const Doubles p = Weights(in, r, head);
      for (int64_t j = 0; j <= r; ++j) {
        const double* v = in.v.data() + (j * s.kv_heads + head / s.group()) * s.dv;
        for (int i = 0; i < s.dv; ++i) out[(r * s.query_heads + head) * s.dv + i] += p[j] * v[i];
      }
    }
  }
  return out;
}

CausalRefGradients CausalAttentionBackwardRef(const CausalRefInput& in, const Doubles& d_out) {
  const CausalShape& s = in.shape;
  const double scale = 1 / std::sqrt(static_cast<double>(s.dk));
  CausalRefGradients g{Doubles(in.q.size()), Doubles(in.k.size()), Doubles(in.v.size())};
  for (int64_t r = 0; r < s.rows; ++r) {
    for (int head = 0; head < s.query_heads; ++head) {
      const Doubles p = Weights(in, r, head);
      const int64_t at_q = (r * s.query_heads + head) * s.dk;
      const double* d = d_out.data() + (r * s.query_heads + head) * s.dv;
      Doubles dp(p.size());
      for (int64_t j = 0; j <= r; ++j) {
        dp[j] = Dot(d, in.v.data() + (j * s.kv_heads + head / s.group()) * s.dv, s.dv);
      }
      const double mean = Dot(p.data(), dp.data(), r + 1);
      for (int64_t j = 0; j <= r; ++j) {
        const int64_t pair = j * s.kv_heads + head / s.group();
        const double ds = p[j] * (dp[j] - mean) * scale;
        for (int i = 0; i < s.dk; ++i) {
          g.q[at_q + i] += ds * in.k[pair * s.dk + i];
          g.k[pair * s.dk + i] += ds * in.q[at_q + i];
        }
        for (int i = 0; i < s.dv; ++i) g.v[pair * s.dv + i] += p[j] * d[i];
      }
    }
  }
  return g;
}

}  // namespace kvring
