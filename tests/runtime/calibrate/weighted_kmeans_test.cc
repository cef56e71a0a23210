// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/weighted_kmeans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace kvring {
namespace {

struct Sample {
  std::vector<double> u, weight;  // u ascending
};

constexpr int kBins = 65536;
// Centroids come in fp32, within [-1, 1].
constexpr double kRounding = 0x1p-24;

WeightedHistogram HistogramOf(const Sample& sample, int bins = kBins) {
  WeightedHistogram histogram(bins);
  for (size_t i = 0; i < sample.u.size(); ++i) histogram.Add(sample.u[i], sample.weight[i]);
  return histogram;
}

std::vector<float> Fit(const WeightedHistogram& histogram, int clusters) {
  const int asked[] = {clusters};
  return WeightedKMeans(histogram, asked)[0];
}

double Distortion(const Sample& sample, std::span<const float> centroids) {
  double total = 0;
  for (size_t i = 0; i < sample.u.size(); ++i) {
    double least = std::numeric_limits<double>::infinity();
    for (const double c : centroids) least = std::min(least, (sample.u[i] - c) * (sample.u[i] - c));
    total += sample.weight[i] * least;
  }
  return total;
}

// Weights of many orders of magnitude, as squared gradients are.
Sample RandomSample(int n, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> place(-1.0, 1.0);
  std::lognormal_distribution<double> weight(0.0, 3.0);
  Sample sample;
  for (int i = 0; i < n; ++i) sample.u.push_back(place(random));
  std::sort(sample.u.begin(), sample.u.end());
  for (int i = 0; i < n; ++i) sample.weight.push_back(weight(random));
  return sample;
}

// Least cost over every way to cut the sample into `clusters` runs.
double LeastByEnumeration(const Sample& s, size_t begin, int clusters) {
  if (begin == s.u.size()) return 0.0;
  if (clusters == 0) return std::numeric_limits<double>::infinity();
  double least = std::numeric_limits<double>::infinity();
  for (size_t end = begin + 1; end <= s.u.size(); ++end) {
    double w = 0, wu = 0, cost = 0;
    for (size_t i = begin; i < end; ++i) w += s.weight[i], wu += s.weight[i] * s.u[i];
    for (size_t i = begin; i < end; ++i) {
      cost += s.weight[i] * (s.u[i] - wu / w) * (s.u[i] - wu / w);
    }
    least = std::min(least, cost + LeastByEnumeration(s, end, clusters - 1));
  }
  return least;
}

// Lloyd's iteration from random elements.
double LloydDistortion(const Sample& s, int clusters, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> c;
  for (int i = 0; i < clusters; ++i) c.push_back(static_cast<float>(s.u[random() % s.u.size()]));
  for (int round = 0; round < 100; ++round) {
    std::vector<double> w(clusters), wu(clusters);
    for (size_t i = 0; i < s.u.size(); ++i) {
      int nearest = 0;
      for (int j = 1; j < clusters; ++j) {
        if (std::fabs(s.u[i] - c[j]) < std::fabs(s.u[i] - c[nearest])) nearest = j;
      }
      w[nearest] += s.weight[i];
      wu[nearest] += s.weight[i] * s.u[i];
    }
    for (int j = 0; j < clusters; ++j) {
      if (w[j] > 0) c[j] = static_cast<float>(wu[j] / w[j]);
    }
  }
  return Distortion(s, c);
}

void ExpectCentroids(const std::vector<float>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 5e-7) << i;
}

// T6 of the spec; its numbers have six decimals.
TEST(WeightedKMeans, WorkedExample) {
  const std::vector<double> u = {-.9, -.7, -.4, 0, .5, .9}, f = {1, 1, 4, 4, 8, 8},
                            s = {1, 1, .5, .5, 1, 2};
  const Sample plain{u, std::vector<double>(6, 1.0)}, fisher{u, f};
  Sample scaled{u, f};
  for (size_t i = 0; i < u.size(); ++i) scaled.weight[i] *= s[i] * s[i];
  const auto expect = [](const Sample& sample, const std::vector<double>& centroids, double j) {
    const std::vector<float> got = Fit(HistogramOf(sample), 3);
    ExpectCentroids(got, centroids);
    EXPECT_NEAR(Distortion(sample, got), j, 5e-7);
    EXPECT_NEAR(WeightedDistortion(HistogramOf(sample), got), j, 5e-7);
  };
  expect(plain, {-.8, -.2, .7}, .18);
  expect(fisher, {-.533333, 0, .7}, .873333);
  expect(scaled, {-.666667, .444444, .9}, .348889);
}

TEST(WeightedKMeans, NothingIsBetter) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const Sample sample = RandomSample(4 + seed % 7, seed);
    for (int clusters = 1; clusters <= 4; ++clusters) {
      const std::vector<float> got = Fit(HistogramOf(sample), clusters);
      const double least = LeastByEnumeration(sample, 0, clusters);
      const double j = Distortion(sample, got);
      // Rounding a centroid by r adds w r^2 to its cluster, to second order.
      double weight = 0;
      for (const double w : sample.weight) weight += w;
      EXPECT_LE(j, least * (1 + 1e-9) + weight * kRounding * kRounding)
          << "seed " << seed << ", " << clusters << " clusters";
      EXPECT_GE(j, least * (1 - 1e-9)) << "the enumeration missed something, seed " << seed;
    }
  }
}

TEST(WeightedKMeans, NeverWorseThanLloyd) {
  const Sample sample = RandomSample(600, 7);
  const WeightedHistogram histogram = HistogramOf(sample);
  for (const int clusters : {4, 8, 16}) {
    const double mine = Distortion(sample, Fit(histogram, clusters));
    // Elements of a bin lie within its width of each other: moving all of them so far costs at most this.
    const double width = 2.0 / kBins;
    for (uint32_t seed = 0; seed < 20; ++seed) {
      const double theirs = LloydDistortion(sample, clusters, seed);
      EXPECT_LE(mine, theirs + 2 * width * std::sqrt(theirs) + width * width) << seed;
    }
  }
}

TEST(WeightedKMeans, OneRunForAllNumbersOfClusters) {
  const WeightedHistogram histogram = HistogramOf(RandomSample(3000, 3));
  const int asked[] = {1, 4, 8, 16, 256};
  const auto all = WeightedKMeans(histogram, asked);
  ASSERT_EQ(all.size(), 5u);
  double before = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i].size(), static_cast<size_t>(asked[i]));
    EXPECT_EQ(all[i], Fit(histogram, asked[i]));
    EXPECT_TRUE(std::is_sorted(all[i].begin(), all[i].end(), std::less_equal<>()));
    EXPECT_GT(all[i].front(), -1.0f);
    EXPECT_LT(all[i].back(), 1.0f);
    const double j = WeightedDistortion(histogram, all[i]);
    EXPECT_LT(j, before);
    before = j;
  }
}

TEST(WeightedKMeans, AFactorOfAllWeightsMovesNothing) {
  Sample sample = RandomSample(500, 11);
  const std::vector<float> before = Fit(HistogramOf(sample), 8);
  for (double& w : sample.weight) w *= 0x1p-60;  // a power of two: exact
  EXPECT_EQ(Fit(HistogramOf(sample), 8), before);
}

TEST(WeightedKMeans, FewDistinctElementsStayStrictlyAscending) {
  const Sample samples[] = {{{0.25}, {3.0}},
                            {{-1.0, 1.0}, {1.0, 5.0}},
                            {{-1.0, -0.5, 0.1, 0.1000001}, {1, 2, 3, 4}},
                            // Neighbouring bins with means that fp32 cannot tell apart.
                            {{0.5 - 1e-12, 0.5}, {1, 1}}};
  for (const Sample& sample : samples) {
    for (const int clusters : {4, 8, 16}) {
      const std::vector<float> got = Fit(HistogramOf(sample), clusters);
      ASSERT_EQ(got.size(), static_cast<size_t>(clusters));
      EXPECT_TRUE(std::adjacent_find(got.begin(), got.end(), std::greater_equal<>()) == got.end());
      for (const double u : sample.u) {
        double nearest = 2;
        for (const float c : got) nearest = std::min(nearest, std::fabs(u - c));
        EXPECT_LE(nearest, 2.0 / kBins) << u << " has no centroid of its own";
      }
    }
  }
}

TEST(WeightedKMeans, WithoutWeightAnEvenGrid) {
  WeightedHistogram histogram(kBins);
  histogram.Add(0.3, 0.0);
  EXPECT_EQ(Fit(histogram, 4), (std::vector<float>{-0.75f, -0.25f, 0.25f, 0.75f}));
}

TEST(WeightedHistogram, EndsBelongToTheOuterBins) {
  WeightedHistogram histogram(4);
  for (const double u : {-7.0, -1.0, 1.0, 7.0}) histogram.Add(u, 1.0);
  histogram.Add(0.0, 2.0);
  EXPECT_EQ(histogram.weight, (std::vector<double>{2, 0, 2, 2}));
  EXPECT_EQ(histogram.sum, (std::vector<double>{-2, 0, 0, 2}));
}

}  // namespace
}  // namespace kvring
