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
  EXPECT_TRUE(a->notes.empty());
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
  EXPECT_TRUE(exact->notes.empty());
  const auto fewer = ChooseWindows(299, 100, 3, 5);
  ASSERT_TRUE(fewer.ok());
  EXPECT_EQ(fewer->begins, (std::vector<int64_t>{0, 100}));
  ASSERT_EQ(fewer->notes.size(), 1u);
  EXPECT_NE(fewer->notes[0].find("2 windows of 100 instead of 3"), std::string::npos);
  const auto none = ChooseWindows(99, 100, 3, 5);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(none.status().message().find("99"), std::string::npos);
  EXPECT_NE(none.status().message().find("100"), std::string::npos);
  EXPECT_FALSE(ChooseWindows(99, 1, 3, 5).ok());
}

// Of several texts each window lies within one; how many each text has.
std::vector<int> WindowsOfTexts(const std::vector<int64_t>& texts, int64_t window, int64_t count,
                                uint64_t seed = 0) {
  const auto windows = ChooseWindows(texts, window, count, seed);
  EXPECT_TRUE(windows.ok()) << windows.status();
  std::vector<int> of_text(texts.size(), 0);
  for (const int64_t begin : windows->begins) {
    int64_t first = 0;
    size_t text = 0;
    while (begin >= first + texts[text]) first += texts[text++];
    EXPECT_LE(begin + window, first + texts[text]);
    ++of_text[text];
  }
  return of_text;
}

TEST(ChooseWindows, SeveralTextsByTheirTokens) {
  const std::vector<int64_t> one = {100000};
  EXPECT_EQ(ChooseWindows(one, 2048, 16, 7)->begins, ChooseWindows(100000, 2048, 16, 7)->begins);
  EXPECT_EQ(WindowsOfTexts({100000, 50000}, 1000, 9), (std::vector<int>{6, 3}));
  // Shares 10.56, 3.92, 1.52: remainders go to the second and the first.
  EXPECT_EQ(WindowsOfTexts({66000, 24500, 9500}, 1000, 16), (std::vector<int>{11, 4, 1}));
  // A text of 1 % has one all the same; without room for each, the longest go first.
  EXPECT_EQ(WindowsOfTexts({98000, 1000, 1000}, 1000, 8), (std::vector<int>{6, 1, 1}));
  EXPECT_EQ(WindowsOfTexts({10000, 98000, 9000}, 1000, 2), (std::vector<int>{0, 2, 0}));
  // No more than a text holds; the others take what it cannot.
  EXPECT_EQ(WindowsOfTexts({1500, 1500, 3000}, 1000, 5), (std::vector<int>{1, 1, 3}));
  for (const uint64_t seed : {1, 2, 3})
    EXPECT_EQ(WindowsOfTexts({5000, 7000}, 1000, 4, seed), (std::vector<int>{2, 2}));
}

TEST(ChooseWindows, ShortTextsAreNotedAndNoneIsSplit) {
  const std::vector<int64_t> texts = {5000, 900, 3000};
  const auto windows = ChooseWindows(texts, 1000, 4, 0);
  ASSERT_TRUE(windows.ok());
  ASSERT_EQ(windows->notes.size(), 1u);
  EXPECT_NE(windows->notes[0].find("text 2 has 900 tokens"), std::string::npos);
  EXPECT_EQ(WindowsOfTexts(texts, 1000, 4)[1], 0);
  const auto few = ChooseWindows(texts, 1000, 99, 0);
  ASSERT_EQ(few->notes.size(), 2u);
  EXPECT_NE(few->notes[1].find("8 windows of 1000 instead of 99"), std::string::npos);
  // All too short: as one.
  const std::vector<int64_t> lines = {400, 400, 400};
  EXPECT_EQ(ChooseWindows(lines, 1000, 1, 3)->begins, ChooseWindows(1200, 1000, 1, 3)->begins);
}

TEST(ChooseHeldOut, LiesWhereNothingWasRead) {
  const std::vector<int64_t> one = {1000}, read = {100, 500};
  // Left are 0..99, 200..499, 600..999: the middle of the last, then of the middle one.
  const HeldOutWindows two = ChooseHeldOut(one, read, 100, 128, 2);
  EXPECT_EQ(two.window, 128);
  EXPECT_EQ(two.begins, (std::vector<int64_t>{600 + (400 - 128) / 2, 200 + (300 - 128) / 2}));
  // One from each text, the longer text first; never across two texts.
  const std::vector<int64_t> texts = {300, 700};
  const HeldOutWindows each = ChooseHeldOut(texts, read, 100, 200, 2);
  EXPECT_EQ(each.begins, (std::vector<int64_t>{600 + 100, 300}));
  // No stretch is that long: as long as there is. Nothing of use: none.
  const HeldOutWindows shorter = ChooseHeldOut(one, read, 100, 2048, 2);
  EXPECT_EQ(shorter.window, 400);
  EXPECT_EQ(shorter.begins, (std::vector<int64_t>{600}));
  const std::vector<int64_t> all = {0, 400, 700};
  EXPECT_EQ(ChooseHeldOut(one, all, 350, 100, 2).window, 0);
}

}  // namespace
}  // namespace kvring
