// SPDX-License-Identifier: Apache-2.0
#include "runtime/eval/scorer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/elementwise.h"
#include "runtime/eval/bootstrap.h"

namespace kvring {
namespace {

// p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4): KL(p || q) = 1/2 ln 2 - 1/4 ln 2 = ln(2) / 4.
TEST(ScorerTest, LossAndKlOfKnownDistributions) {
  const std::vector<float> p = {std::log(2.0f), 0, 0}, q = {1, 1 + std::log(2.0f), 1};
  const RowScore score = ScoreRow(p, LogSumExp(p.data(), 3), q, 1);
  EXPECT_NEAR(score.nats, std::log(2.0), 1e-6);
  EXPECT_NEAR(score.kl, std::log(2.0) / 4, 1e-6);
  EXPECT_FALSE(score.agrees);
  const RowScore same = ScoreRow(p, LogSumExp(p.data(), 3), p, 0);
  EXPECT_EQ(same.kl, 0);
  EXPECT_TRUE(same.agrees);
}

TEST(ScorerTest, AShiftOfAllLogitsChangesNothing) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> p(1000), q(1000), shifted(1000);
  for (int i = 0; i < 1000; ++i) {
    p[i] = normal(random);
    q[i] = p[i] + 0.1f * normal(random);
    shifted[i] = q[i] + 8;
  }
  const double lse = LogSumExp(p.data(), 1000);
  const RowScore a = ScoreRow(p, lse, q, 17), b = ScoreRow(p, lse, shifted, 17);
  EXPECT_NEAR(a.kl, b.kl, 1e-5);
  EXPECT_NEAR(a.nats, b.nats, 1e-5);
  EXPECT_GT(a.kl, 0);
}

TEST(BootstrapTest, IntervalHoldsTheMeanAndNarrowsWithMoreTokens) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.05f, 0.3f);
  const auto width = [&](int n) {
    std::vector<float> values(n);
    for (float& v : values) v = normal(random);
    const auto [low, high] = BootstrapInterval(values);
    EXPECT_LT(low, high);
    // 0.3 / sqrt(n) is the standard error; four of them hold the true mean but for one case in 16,000.
    EXPECT_LT(low, 0.05 + 4 * 0.3 / std::sqrt(n));
    EXPECT_GT(high, 0.05 - 4 * 0.3 / std::sqrt(n));
    return high - low;
  };
  const double few = width(4096), many = width(65536);
  EXPECT_NEAR(few / many, 4, 1.5) << "16 times the tokens, a quarter of the width";
  EXPECT_NEAR(many, 2 * 1.96 * 0.3 / 256, 0.2 * many);
}

TEST(BootstrapTest, SameValuesSameInterval) {
  const std::vector<float> values = {0.1f, 0.2f, -0.1f};
  EXPECT_EQ(BootstrapInterval(values), BootstrapInterval(values));
  EXPECT_EQ(BootstrapInterval({}), std::make_pair(0.0, 0.0));
}

}  // namespace
}  // namespace kvring
