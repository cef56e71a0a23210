// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/parallel.h"
#include "tests/kernels/simd_targets.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

std::vector<float> RmsNormInDouble(const std::vector<float>& x, const std::vector<float>& w,
                                   double epsilon, int64_t n) {
  std::vector<float> y(x.size());
  for (size_t first = 0; first < x.size(); first += n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[first + i]) * x[first + i];
    const double scale = 1 / std::sqrt(sum / n + epsilon);
    for (int64_t i = 0; i < n; ++i) y[first + i] = static_cast<float>(x[first + i] * scale * w[i]);
  }
  return y;
}

TEST(RmsNorm, AgreesWithDouble) {
  ForEachSimdTarget([](int64_t) {
    for (int64_t n : {1, 7, 16, 100, 576, 4099}) {
      const auto x = NormalFloats(5 * n, static_cast<uint32_t>(n)), w = NormalFloats(n, 1);
      std::vector<float> y(x.size());
      RmsNorm(x.data(), w.data(), 1e-5f, 5, n, y.data());
      // All terms are positive: the sum is within (n / 16 + 4 + 16) u of itself in chains of n / 16, half of that after
      // the root, and 5 more roundings.
      const Tolerance tolerance{1e-30, (n / 16.0 + 25) * kUnitF32};
      EXPECT_TRUE(AllNear(y, RmsNormInDouble(x, w, 1e-5f, n), tolerance)) << n;
    }
  });
}

// A row's bits are its own: alone, in company, in place, with any number of threads.
TEST(RmsNorm, RowsAreIndependentOfCompanyAndThreads) {
  constexpr int64_t kRows = 512, kN = 576;
  const auto x = NormalFloats(kRows * kN, 4), w = NormalFloats(kN, 5);
  ForEachSimdTarget([&](int64_t) {
    std::vector<float> all(x.size());
    SetThreads(2);
    RmsNorm(x.data(), w.data(), 1e-5f, kRows, kN, all.data());
    SetThreads(1);
    for (int64_t rows : {1, 3, 8, 64, 512}) {
      std::vector<float> some(x.begin(), x.begin() + rows * kN);
      RmsNorm(some.data(), w.data(), 1e-5f, rows, kN, some.data());
      EXPECT_TRUE(SameBits(some, {all.data(), some.size()})) << rows;
    }
  });
}

TEST(RmsNorm, IsTheSameOnInstructionSetsWithFusedProducts) {
  const auto x = NormalFloats(3 * 577, 4), w = NormalFloats(577, 5);
  std::vector<float> first;
  ForEachSimdTarget([&](int64_t target) {
    if (target != HWY_AVX2 && target != HWY_AVX3) return;
    std::vector<float> y(x.size());
    RmsNorm(x.data(), w.data(), 1e-5f, 3, 577, y.data());
    if (first.empty()) first = y;
    EXPECT_TRUE(SameBits(y, first));
  });
}

TEST(SwiGlu, AgreesWithDoubleOverTheWholeRange) {
  std::vector<float> g, u;
  for (float a = -200; a <= 200; a += 0.37f) g.push_back(a);
  for (float a : {0.0f, -0.0f, 1e-30f, -1e-30f, 3e38f, -3e38f, INFINITY}) g.push_back(a);
  u = NormalFloats(static_cast<int64_t>(g.size()), 2);
  std::vector<float> want(g.size()), y(g.size());
  for (size_t i = 0; i < g.size(); ++i) {
    want[i] = static_cast<float>(g[i] / (1 + std::exp(-static_cast<double>(g[i]))) * u[i]);
  }
  ForEachSimdTarget([&](int64_t) {
    SwiGlu(g.data(), u.data(), static_cast<int64_t>(g.size()), y.data());
    for (size_t i = 0; i < g.size(); ++i) {
      if (std::isinf(want[i])) {
        EXPECT_EQ(y[i], want[i]);
        continue;
      }
      // The exponent is a rounded product, so its error grows with |g|: |g| log2(e) 2u in the power, where it matters
      // (g < 0). Below exp(-87) the power is flushed: 1e-36 absolute.
      const double relative = (std::max(0.0f, -g[i]) * 3.0 + 8) * kUnitF32;
      EXPECT_NEAR(y[i], want[i], relative * std::fabs(want[i]) + 1e-35 * std::fabs(u[i])) << g[i];
    }
  });
}

TEST(SwiGlu, AnElementDoesNotDependOnItsPlace) {
  const auto g = NormalFloats(100000, 1, 4.0f), u = NormalFloats(100000, 2);
  ForEachSimdTarget([&](int64_t) {
    std::vector<float> all(g.size());
    SetThreads(2);
    SwiGlu(g.data(), u.data(), 100000, all.data());
    SetThreads(1);
    for (int64_t n : {1, 5, 15, 16, 17, 1536}) {
      for (int64_t first : {0, 3, 70001}) {
        std::vector<float> some(g.begin() + first, g.begin() + first + n);
        SwiGlu(some.data(), u.data() + first, n, some.data());
        EXPECT_TRUE(SameBits(some, {all.data() + first, some.size()})) << n << " at " << first;
      }
    }
  });
}

TEST(AddInPlace, Adds) {
  auto x = NormalFloats(1001, 1);
  const auto before = x, y = NormalFloats(1001, 2);
  AddInPlace(x.data(), y.data(), 1001);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], before[i] + y[i]);
}

TEST(ArgMax, IsTheFirstOfTheLargest) {
  ForEachSimdTarget([](int64_t) {
    for (int64_t n : {1, 2, 15, 16, 17, 64, 65, 1000}) {
      const auto x = NormalFloats(n, static_cast<uint32_t>(n));
      EXPECT_EQ(ArgMax(x.data(), n), std::max_element(x.begin(), x.end()) - x.begin()) << n;
      for (int64_t at = 0; at < n; at += 7) {
        std::vector<float> y(static_cast<size_t>(n), -3.0f);
        y[at] = y[n - 1] = 9.0f;
        EXPECT_EQ(ArgMax(y.data(), n), at) << n;
        y[n - 1] = std::nanf("");
        EXPECT_EQ(ArgMax(y.data(), n), at == n - 1 ? 0 : at) << n;
      }
    }
    const std::vector<float> nothing(40, -INFINITY);
    EXPECT_EQ(ArgMax(nothing.data(), 40), 0);
  });
}

TEST(LogSumExp, IsExactInDoubleAndSurvivesLargeNumbers) {
  const auto x = NormalFloats(49152, 1, 5.0f);
  long double sum = 0;
  for (float value : x) sum += std::exp(static_cast<long double>(value));
  // 49152 additions in double, and exp's own error: far below 1e-11 of the sum.
  EXPECT_NEAR(LogSumExp(x.data(), 49152), static_cast<double>(std::log(sum)), 1e-11);
  const float large[3] = {3e38f, 3e38f, -3e38f};
  EXPECT_DOUBLE_EQ(LogSumExp(large, 3), 3e38f + std::log(2.0));
  const float one[1] = {-7.25f};
  EXPECT_EQ(LogSumExp(one, 1), -7.25);
}

}  // namespace
}  // namespace kvring
