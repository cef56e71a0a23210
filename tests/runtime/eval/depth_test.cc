// SPDX-License-Identifier: Apache-2.0
#include "runtime/eval/depth.h"

#include <gtest/gtest.h>

#include <numeric>

#include "runtime/eval/evaluator.h"
#include "tests/support/model_run.h"

namespace kvring {
namespace {

using Bounds = std::vector<std::pair<int64_t, int64_t>>;

TEST(DepthTest, BoundsArePowersOfTwoCutAtTheWindow) {
  EXPECT_EQ(DepthBounds(2048), Bounds{});
  EXPECT_EQ(DepthBounds(2049), (Bounds{{0, 2048}, {2048, 2049}}));
  EXPECT_EQ(DepthBounds(6000), (Bounds{{0, 2048}, {2048, 4096}, {4096, 6000}}));
  EXPECT_EQ(DepthBounds(8192), (Bounds{{0, 2048}, {2048, 4096}, {4096, 8192}}));
}

// Powers of two: every sum is exact.
TEST(DepthTest, MeansAreThoseOfTheirTokens) {
  DepthSums sums(4096);
  WindowScore score, base;
  base.nats.assign(4095, 1.0f);
  base.kl.assign(4095, 0.0);
  score.nats.assign(2048, 2.0f);
  score.nats.resize(4095, 5.0f);
  score.kl.assign(2048, 0.25);
  score.kl.resize(4095, 0.5);
  sums.Add(score, base);
  sums.Add(base, base);
  const std::vector<DepthRange> ranges = sums.Ranges();
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].tokens, 2 * 2048);
  EXPECT_EQ(ranges[1].tokens, 2 * 2047);
  EXPECT_EQ(ranges[0].nats, 1.5);
  EXPECT_EQ(ranges[1].nats, 3.0);
  EXPECT_EQ(ranges[0].nats_over_f16, 0.5);
  EXPECT_EQ(ranges[1].nats_over_f16, 2.0);
  EXPECT_EQ(ranges[0].kl, 0.125);
  EXPECT_EQ(ranges[1].window_kl, (std::vector<double>{0.5, 0}));
  EXPECT_EQ(ranges[1].window_nats, (std::vector<double>{5, 1}));
}

TEST(DepthTest, ARangeWithoutAScoredTokenIsLeftOut) {
  DepthSums sums(2049);
  WindowScore score;
  score.nats.assign(2048, 1.0f);
  score.kl.assign(2048, 0.0);
  sums.Add(score, score);
  ASSERT_EQ(sums.Ranges().size(), 1u);
  EXPECT_EQ(sums.Ranges()[0].tokens, 2048);
}

std::vector<EvalRow> Rows(int64_t window, int64_t windows) {
  TinyModelOptions tiny;
  tiny.hidden = 96;
  tiny.query_heads = 4;
  tiny.kv_heads = 2;
  tiny.head_dim = 32;
  tiny.ffn = 128;
  static const TestModel model = *MakeTestModel(tiny, LinearMath::kF32);
  EvalOptions options;
  options.weights = model.weights;
  options.numerics = model.numerics;
  options.codecs = {"f16", "rot3"};
  options.window = window;
  options.windows = windows;
  const auto rows =
      Evaluate(options, RandomIds(window * windows, 1, model.config.vocab, 9), nullptr);
  EXPECT_TRUE(rows.ok()) << rows.status();
  return rows.ok() ? *rows : std::vector<EvalRow>{};
}

TEST(DepthTest, TheWeightedMeanOfTheRangesIsTheWhole) {
  const int64_t window = 2500, windows = 2;
  for (const EvalRow& row : Rows(window, windows)) {
    ASSERT_EQ(row.by_depth.size(), 2u) << row.kv;
    int64_t tokens = 0;
    double nats = 0, over = 0, kl = 0;
    std::vector<double> window_kl(windows), window_nats(windows);
    for (const DepthRange& range : row.by_depth) {
      EXPECT_EQ(range.tokens % windows, 0);
      tokens += range.tokens;
      nats += range.nats * range.tokens;
      over += range.nats_over_f16 * range.tokens;
      kl += range.kl * range.tokens;
      ASSERT_EQ(range.window_kl.size(), static_cast<size_t>(windows));
      for (int64_t w = 0; w < windows; ++w) {
        window_kl[w] += range.window_kl[w] * range.tokens / windows;
        window_nats[w] += range.window_nats[w] * range.tokens / windows;
      }
    }
    EXPECT_EQ(tokens, (window - 1) * windows);
    // The same 5000 numbers summed in double in another order: 5000 * 2^-53 of the sum of their sizes.
    const double relative = 5000 * 0x1p-53;
    EXPECT_NEAR(nats / tokens, row.nats, row.nats * relative);
    // Differences are of both signs, each below the loss of a model that is sure and wrong.
    EXPECT_NEAR(over / tokens, row.nats_over_f16, 100 * relative);
    EXPECT_NEAR(kl / tokens, row.kl, row.kl * relative + 1e-15);
    for (int64_t w = 0; w < windows; ++w) {
      EXPECT_NEAR(window_kl[w] / (window - 1), row.window_kl[w],
                  row.window_kl[w] * relative + 1e-15);
      EXPECT_NEAR(window_nats[w], row.window_nats[w], row.window_nats[w] * relative);
    }
  }
}

TEST(DepthTest, AWindowOf2048TokensHasNoRanges) {
  for (const EvalRow& row : Rows(600, 1)) EXPECT_TRUE(row.by_depth.empty()) << row.kv;
}

}  // namespace
}  // namespace kvring
