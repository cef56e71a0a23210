// SPDX-License-Identifier: Apache-2.0
// What a calibration is made of: tails of channels, slots of a page, matched moments, windows of a text.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "runtime/calibrate/calibration_windows.h"
#include "runtime/calibrate/channel_tails.h"
#include "runtime/calibrate/moment_match.h"
#include "runtime/calibrate/slot_counts.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

// Interpolated quantile of everything, by sorting.
float Quantile(std::vector<float> x, double p) {
  std::sort(x.begin(), x.end());
  const double at = p * static_cast<double>(x.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, x.size() - 1);
  return static_cast<float>(x[below] +
                            (at - static_cast<double>(below)) * (double{x[above]} - x[below]));
}

TEST(ChannelTails, QuantilesOfAllSamples) {
  constexpr int64_t kChannels = 37, kRows = 1003;
  const std::vector<float> x = NormalFloats(kChannels * kRows, 5);
  ChannelTails tails(kChannels, kRows, 0.02);
  tails.Add(x.data(), 400);
  tails.Add(x.data() + 400 * kChannels, kRows - 400);
  for (const double f : {0.0, 0.001, 0.005, 0.01, 0.02}) {
    const ChannelTails::Limits limits = tails.Quantiles(f);
    for (int64_t c = 0; c < kChannels; ++c) {
      std::vector<float> column;
      for (int64_t r = 0; r < kRows; ++r) column.push_back(x[r * kChannels + c]);
      // Positions counted from either end differ by a rounding of n - 1, which moves the result by less than an ulp or two.
      EXPECT_NEAR(limits.lo[c], Quantile(column, f / 2), 4e-7) << f << " " << c;
      EXPECT_NEAR(limits.hi[c], Quantile(column, 1 - f / 2), 4e-7) << f << " " << c;
      if (f > 0) continue;
      EXPECT_EQ(limits.lo[c], *std::min_element(column.begin(), column.end()));
      EXPECT_EQ(limits.hi[c], *std::max_element(column.begin(), column.end()));
    }
  }
  EXPECT_LT(tails.bytes(), kChannels * kRows * 4 / 20) << "only the tails are kept";
}

TEST(ChannelTails, OrderOfRowsAndThreadsDoNotMatter) {
  constexpr int64_t kChannels = 5, kRows = 300;
  const std::vector<float> x = NormalFloats(kChannels * kRows, 6);
  ChannelTails one(kChannels, kRows, 0.05), other(kChannels, kRows, 0.05);
  one.Add(x.data(), kRows);
  for (int64_t r = kRows; r-- > 0;) other.Add(x.data() + r * kChannels, 1);
  EXPECT_EQ(one.Quantiles(0.05).lo, other.Quantiles(0.05).lo);
  EXPECT_EQ(one.Quantiles(0.03).hi, other.Quantiles(0.03).hi);
}

TEST(ChannelTails, FewRows) {
  for (const int64_t rows : {1, 2, 3}) {
    ChannelTails tails(1, rows, 0.5);
    const float x[] = {3.0f, 1.0f, 2.0f};
    tails.Add(x, rows);
    EXPECT_FLOAT_EQ(tails.Quantiles(0.5).lo[0], Quantile({x, x + rows}, 0.25));
    EXPECT_FLOAT_EQ(tails.Quantiles(0.5).hi[0], Quantile({x, x + rows}, 0.75));
  }
}

// 100 blocks of 4 tokens: 98 with 4 outliers, one with 10, one with 12.
SlotCounts SkewedCounts() {
  SlotCounts counts(4);
  for (int block = 0; block < 100; ++block) {
    const int outliers = block == 40 ? 10 : block == 41 ? 12 : 4;
    for (int t = 0; t < 4; ++t) counts.AddToken(block * 4 + t, t == 1 ? outliers : 0);
  }
  return counts;
}

TEST(SlotCounts, AHundredthMayOverflow) {
  // 414 outliers: 4 may be left out. With 10 slots 2 are, with 9 slots 1 + 3 = 4, with 8 slots 2 + 4 = 6.
  EXPECT_EQ(SkewedCounts().Slots(), 10) << "9, rounded up to even";
  EXPECT_NEAR(SkewedCounts().MeanOutliers(), 414.0 / 400, 1e-12);
}

TEST(SlotCounts, AtLeastTwoAndOnlyWholeBlocks) {
  SlotCounts none(4);
  for (int t = 0; t < 8; ++t) none.AddToken(t, 0);
  EXPECT_EQ(none.Slots(), 2);
  SlotCounts partial(4);
  for (int t = 0; t < 6; ++t) partial.AddToken(t, t < 4 ? 1 : 50);
  EXPECT_EQ(partial.Slots(), 4) << "the second block is not complete";
  // A new window begins a block, whatever was open.
  for (int t = 0; t < 4; ++t) partial.AddToken(t, 1);
  EXPECT_EQ(partial.Slots(), 4);
}

TEST(SlotCounts, SinksTakeAPlaceAndHaveNoOutliers) {
  SlotCounts counts(4);
  counts.AddSink(0);
  counts.AddSink(1);
  counts.AddToken(2, 3);
  counts.AddToken(3, 3);
  EXPECT_EQ(counts.Slots(), 6);
  EXPECT_DOUBLE_EQ(counts.MeanOutliers(), 3.0);
}

// T7 of the spec; its numbers have six decimals.
TEST(MatchMoments, WorkedExample) {
  const std::vector<double> u = {-1, -.7, -.3, -.1, 0, .15, .45, .9};
  const std::vector<float> c = {-.8f, -.15f, .2f, .8f};
  WeightedHistogram histogram(65536);
  for (const double x : u) histogram.Add(x, 1.0);
  const MomentMatch match = MatchMoments(histogram, c);
  EXPECT_NEAR(match.a, 1.142315, 1e-6);
  EXPECT_NEAR(match.o, 0.046371, 1e-6);
  const std::vector<float> decode = DecodeTable(match, c);
  const double want[] = {-.867481, -.124976, .274834, .960223};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(decode[i], want[i], 1e-6);
  double sum = 0, squares = 0;
  for (const double x : u) {
    int code = 0;  // by the original centroids
    for (int j = 1; j < 4; ++j) {
      if (std::fabs(x - c[j]) < std::fabs(x - c[code])) code = j;
    }
    sum += decode[code];
    squares += double{decode[code]} * decode[code];
  }
  const double mean = sum / 8;
  EXPECT_NEAR(mean, -0.075, 1e-6);
  EXPECT_NEAR(std::sqrt(squares / 8 - mean * mean), 0.567891, 1e-6);
}

TEST(MatchMoments, WithoutDeviationOnlyTheMeanMoves) {
  WeightedHistogram histogram(65536);
  histogram.Add(0.5, 9.0);
  const MomentMatch match = MatchMoments(histogram, std::vector<float>{-0.5f, 0.25f});
  EXPECT_DOUBLE_EQ(match.a, 1.0);
  EXPECT_DOUBLE_EQ(match.o, 0.25);
  EXPECT_DOUBLE_EQ(MatchMoments(WeightedHistogram(8), std::vector<float>{0.5f}).a, 1.0);
}

TEST(ChooseWindows, SeedAloneDecides) {
  const auto a = ChooseWindows(100000, 2048, 16, 0), b = ChooseWindows(100000, 2048, 16, 0),
             c = ChooseWindows(100000, 2048, 16, 1);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  EXPECT_EQ(a->begins, b->begins);
  EXPECT_NE(a->begins, c->begins);
  EXPECT_TRUE(a->note.empty());
  for (const int64_t begin : a->begins) {
    EXPECT_GE(begin, 0);
    EXPECT_LE(begin, 100000 - 2048);
  }
  EXPECT_EQ(std::set<int64_t>(a->begins.begin(), a->begins.end()).size(), 16u);
}

TEST(ChooseWindows, ShortTextsAreReadInOrder) {
  const auto exact = ChooseWindows(300, 100, 3, 5);
  ASSERT_TRUE(exact.ok());
  EXPECT_EQ(exact->begins, (std::vector<int64_t>{0, 100, 200}));
  EXPECT_TRUE(exact->note.empty());
  const auto fewer = ChooseWindows(299, 100, 3, 5);
  ASSERT_TRUE(fewer.ok());
  EXPECT_EQ(fewer->begins, (std::vector<int64_t>{0, 100}));
  EXPECT_NE(fewer->note.find("2 windows of 100 instead of 3"), std::string::npos) << fewer->note;
  const auto none = ChooseWindows(99, 100, 3, 5);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(none.status().message().find("99"), std::string::npos);
  EXPECT_NE(none.status().message().find("100"), std::string::npos);
  EXPECT_FALSE(ChooseWindows(99, 1, 3, 5).ok());
}

}  // namespace
}  // namespace kvring
