// SPDX-License-Identifier: Apache-2.0
#include "kernels/backward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "kernels/elementwise.h"
#include "kernels/parallel.h"
#include "kernels/ref/backward_ref.h"
#include "tests/kernels/simd_targets.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

Doubles ToDouble(const std::vector<float>& x) { return Doubles(x.begin(), x.end()); }
std::vector<float> ToFloat(const Doubles& x) { return std::vector<float>(x.begin(), x.end()); }

double Largest(const Doubles& x) {
  double most = 0;
  for (double v : x) most = std::max(most, std::fabs(v));
  return most;
}

// Central difference of f at x[i], Richardson's extrapolation of steps h and h/2: in double, error about 1e-9 here.
template <class F>
double Difference(Doubles& x, size_t i, const F& f) {
  const double at = x[i];
  const auto slope = [&](double h) {
    x[i] = at + h;
    const double up = f();
    x[i] = at - h;
    const double down = f();
    x[i] = at;
    return (up - down) / (2 * h);
  };
  return (4 * slope(5e-4) - slope(1e-3)) / 3;
}
constexpr double kDifferenceError = 1e-8;

double Weighted(const Doubles& y, const Doubles& weights) {
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += y[i] * weights[i];
  return sum;
}

TEST(BackwardRef, RmsNormIsTheDerivativeOfRmsNorm) {
  constexpr int64_t kN = 7;
  Doubles x = ToDouble(NormalFloats(2 * kN, 1));
  const Doubles w = ToDouble(NormalFloats(kN, 2)), dy = ToDouble(NormalFloats(2 * kN, 3));
  const auto loss = [&] {
    Doubles y(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      double squares = 0;
      for (size_t j = i / kN * kN; j < (i / kN + 1) * kN; ++j) squares += x[j] * x[j];
      y[i] = x[i] / std::sqrt(squares / kN + 1e-2) * w[i % kN];
    }
    return Weighted(y, dy);
  };
  const Doubles dx = RmsNormBackwardRef(x, w, 1e-2, dy);
  for (size_t i = 0; i < x.size(); ++i)
    EXPECT_NEAR(dx[i], Difference(x, i, loss), kDifferenceError) << i;
}

TEST(BackwardRef, AttentionIsTheDerivativeOfAttention) {
  CausalRefInput in;
  in.shape = {5, 4, 2, 6, 4};
  in.q = ToDouble(NormalFloats(5 * 4 * 6, 1));
  in.k = ToDouble(NormalFloats(5 * 2 * 6, 2));
  in.v = ToDouble(NormalFloats(5 * 2 * 4, 3));
  const Doubles d_out = ToDouble(NormalFloats(5 * 4 * 4, 4));
  const CausalRefGradients g = CausalAttentionBackwardRef(in, d_out);
  const auto loss = [&] { return Weighted(CausalAttentionRef(in), d_out); };
  for (size_t i = 0; i < in.q.size(); ++i)
    EXPECT_NEAR(g.q[i], Difference(in.q, i, loss), kDifferenceError) << i;
  for (size_t i = 0; i < in.k.size(); ++i)
    EXPECT_NEAR(g.k[i], Difference(in.k, i, loss), kDifferenceError) << i;
  for (size_t i = 0; i < in.v.size(); ++i)
    EXPECT_NEAR(g.v[i], Difference(in.v, i, loss), kDifferenceError) << i;
}

TEST(RmsNormBackward, AgreesWithDoubleAndAdds) {
  for (int64_t n : {1, 15, 16, 33, 576}) {
    const auto x = NormalFloats(5 * n, 1), w = NormalFloats(n, 2), dy = NormalFloats(5 * n, 3);
    const Doubles want = RmsNormBackwardRef(ToDouble(x), ToDouble(w), 1e-5, ToDouble(dy));
    std::vector<float> dx(x.size(), 0.0f), twice(x.size(), 0.0f);
    RmsNormBackward(x.data(), w.data(), 1e-5f, dy.data(), 5, n, dx.data());
    // Inner sums are exact. With s = 1 / rms of the row, the products are at most s |w| |dy| and |s x| s |w| |dy|, where
    // s x is at most sqrt(n) and in these rows below 4. Their difference: 6 roundings; 1e-5f is not 1e-5: one more.
    double steepest = 0;
    for (int64_t r = 0; r < 5; ++r) {
      double squares = 0;
      for (int64_t i = 0; i < n; ++i) squares += std::pow(x[r * n + i], 2);
      steepest = std::max(steepest, 1 / std::sqrt(squares / static_cast<double>(n)));
    }
    const double size = (1 + 4) * steepest * Largest(ToDouble(dy)) * Largest(ToDouble(w));
    EXPECT_TRUE(AllNear(dx, ToFloat(want), {7 * kUnitF32 * size, 0})) << n;
    for (int i = 0; i < 2; ++i)
      RmsNormBackward(x.data(), w.data(), 1e-5f, dy.data(), 5, n, twice.data());
    for (float& v : dx) v *= 2;
    EXPECT_TRUE(AllNear(twice, dx, {2 * kUnitF32 * size, 0})) << n;
  }
}

TEST(SwiGluBackward, AgreesWithDoubleOverTheWholeRange) {
  std::vector<float> g;
  for (float a = -200; a <= 200; a += 0.37f) g.push_back(a);
  for (float a : {0.0f, -0.0f, 1e-30f, -1e-30f}) g.push_back(a);
  const auto ffn = static_cast<int64_t>(g.size());
  const auto u = NormalFloats(ffn, 2), dy = NormalFloats(ffn, 3);
  const SwiGluGradients want = SwiGluBackwardRef(ToDouble(g), ToDouble(u), ToDouble(dy));
  ForEachSimdTarget([&](int64_t) {
    std::vector<float> both = g;
    both.insert(both.end(), u.begin(), u.end());
    SwiGluBackward(both.data(), dy.data(), 1, ffn);
    for (int64_t i = 0; i < ffn; ++i) {
      // The exponent -g log2 e is off by |g| log2(e) u in units of its last place, which is that share of the sigmoid for
      // negative g; its own error is two units; 8 further roundings. Below 2^-126 the sigmoid is zero.
      const double relative = (std::fabs(g[i]) * 3 + 12) * kUnitF32;
      const double scale = std::fabs(static_cast<double>(dy[i])) * (1 + std::fabs(u[i]));
      const double s = 1 / (1 + std::exp(-static_cast<double>(g[i])));
      const double size = scale * s * (1 + std::fabs(g[i]));
      EXPECT_NEAR(both[i], want.gate[i], relative * size + 1e-34) << g[i];
      EXPECT_NEAR(both[ffn + i], want.up[i], relative * size + 1e-34) << g[i];
    }
  });
}

TEST(CrossEntropyBackward, AgreesWithDouble) {
  constexpr int64_t kRows = 3;
  for (int64_t vocab : {1, 17, 1024, 5000}) {
    const auto logits = NormalFloats(kRows * vocab, 1, 4.0f);
    const std::vector<int32_t> targets = {0, static_cast<int32_t>(vocab - 1),
                                          static_cast<int32_t>(vocab / 2)};
    ForEachSimdTarget([&](int64_t) {
      std::vector<float> d = logits;
      double losses[kRows];
      CrossEntropyBackward(d.data(), targets.data(), 0.25f, kRows, vocab, losses);
      for (int64_t r = 0; r < kRows; ++r) {
        const float* x = logits.data() + r * vocab;
        const double log_sum = LogSumExp(x, vocab);
        // Arguments of the exponential reach 40: 60 units in base 2; pieces of 1024 are 64 sums a lane.
        const double unit = (60 + 64 + 8) * kUnitF32;
        EXPECT_NEAR(losses[r], log_sum - x[targets[r]], unit) << vocab;
        for (int64_t i = 0; i < vocab; ++i) {
          const double p = std::exp(x[i] - log_sum);
          EXPECT_NEAR(d[r * vocab + i], 0.25 * (p - (i == targets[r])), 0.25 * unit) << i;
        }
      }
    });
  }
}

struct AttentionCase {
  CausalShape shape;
  float spread;  // of queries: how peaked the softmax is
};

struct AttentionRun {
  std::vector<float> out, dq, dk, dv;
};

struct AttentionData {
  explicit AttentionData(const AttentionCase& c) {
    const CausalShape& s = c.shape;
    q = NormalFloats(s.rows * s.query_heads * s.dk, 1, c.spread);
    k = NormalFloats(s.rows * s.kv_heads * s.dk, 2);
    v = NormalFloats(s.rows * s.kv_heads * s.dv, 3);
    d_out = NormalFloats(s.rows * s.query_heads * s.dv, 4);
  }
  std::vector<float> q, k, v, d_out;
};

AttentionRun Attend(const CausalShape& shape, const AttentionData& data) {
  AttentionRun run;
  run.out.resize(data.d_out.size());
  run.dq.assign(data.q.size(), NAN);  // every element is written
  run.dk.assign(data.k.size(), NAN);
  run.dv.assign(data.v.size(), NAN);
  CausalAttention attention(shape);
  attention.Forward(data.q.data(), data.k.data(), data.v.data(), run.out.data());
  attention.Backward(data.q.data(), run.out.data(), data.d_out.data(), run.dq.data(), run.dk.data(),
                     run.dv.data());
  return run;
}

TEST(CausalAttention, AgreesWithDouble) {
  const AttentionCase cases[] = {{{1, 1, 1, 16, 16}, 1},    {{63, 2, 1, 16, 32}, 1},
                                 {{64, 2, 2, 64, 64}, 3},   {{65, 6, 2, 8, 24}, 1},
                                 {{130, 3, 1, 128, 64}, 3}, {{200, 4, 4, 10, 6}, 1}};
  for (const AttentionCase& c : cases) {
    SCOPED_TRACE(c.shape.rows);
    const AttentionData data(c);
    const CausalRefInput in{c.shape, ToDouble(data.q), ToDouble(data.k), ToDouble(data.v)};
    const auto want = CausalAttentionBackwardRef(in, ToDouble(data.d_out));
    const auto out = CausalAttentionRef(in);
    // A score of size up to |q||k|/sqrt(d), about 4 spread sqrt(d), is off by dk + 3 units of that size; so is the weight
    // relative to itself. Sums over dv, rows and the group follow. Worst case; what errors do is 50 times less.
    const CausalShape& s = c.shape;
    const double score = (s.dk + 3) * 4 * c.spread * std::sqrt(s.dk);
    const double units = (score + s.dv + static_cast<double>(s.rows) * s.group()) * kUnitF32;
    ForEachSimdTarget([&](int64_t) {
      const AttentionRun run = Attend(c.shape, data);
      EXPECT_TRUE(AllNear(run.out, ToFloat(out), {units * Largest(out), 0}));
      EXPECT_TRUE(AllNear(run.dq, ToFloat(want.q), {units * Largest(want.q) + 1e-6, 0}));
      EXPECT_TRUE(AllNear(run.dk, ToFloat(want.k), {units * Largest(want.k) + 1e-6, 0}));
      EXPECT_TRUE(AllNear(run.dv, ToFloat(want.v), {units * Largest(want.v), 0}));
    });
  }
}

TEST(CausalAttention, BitsDoNotDependOnThreads) {
  const AttentionCase c{{150, 6, 2, 32, 32}, 2};
  const AttentionData data(c);
  const int before = Threads();
  SetThreads(1);
  const AttentionRun one = Attend(c.shape, data);
  SetThreads(2);
  const AttentionRun two = Attend(c.shape, data);
  SetThreads(before);
  EXPECT_TRUE(SameBits(one.out, two.out));
  EXPECT_TRUE(SameBits(one.dq, two.dq));
  EXPECT_TRUE(SameBits(one.dk, two.dk));
  EXPECT_TRUE(SameBits(one.dv, two.dv));
}

// A later window of the same object does not see the earlier one.
TEST(CausalAttention, IsReusable) {
  const AttentionCase c{{70, 2, 1, 16, 16}, 2};
  const AttentionData data(c);
  const AttentionRun want = Attend(c.shape, data);
  CausalAttention attention(c.shape);
  AttentionRun run = want;
  const auto other = NormalFloats(static_cast<int64_t>(data.k.size()), 9, 10.0f);
  attention.Forward(data.q.data(), other.data(), other.data(), run.out.data());
  attention.Backward(data.q.data(), run.out.data(), data.d_out.data(), run.dq.data(), run.dk.data(),
                     run.dv.data());
  attention.Forward(data.q.data(), data.k.data(), data.v.data(), run.out.data());
  attention.Backward(data.q.data(), run.out.data(), data.d_out.data(), run.dq.data(), run.dk.data(),
                     run.dv.data());
  EXPECT_TRUE(SameBits(run.out, want.out));
  EXPECT_TRUE(SameBits(run.dq, want.dq));
  EXPECT_TRUE(SameBits(run.dk, want.dk));
  EXPECT_TRUE(SameBits(run.dv, want.dv));
}

}  // namespace
}  // namespace kvring
