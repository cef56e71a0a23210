// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

namespace kvring {
namespace {

// First output words of the Random123 distribution's known-answer file (kat_vectors, philox4x32 10): counter and key of all
// zeros give 6627e8d5; all ones give 408f276d.
TEST(SamplerTest, CounterUniformIsPhilox) {
  EXPECT_EQ(CounterUniform(0, 0, 0), static_cast<float>(0x6627e8d5u >> 8) * 0x1p-24f);
  EXPECT_EQ(CounterUniform(~uint64_t{0}, ~uint64_t{0}, -1),
            static_cast<float>(0x408f276du >> 8) * 0x1p-24f);
}

TEST(SamplerTest, GreedyTakesTheLargestAndTheLowerIdAmongEquals) {
  EXPECT_EQ(SampleToken(std::vector<float>{0, 3, 1, 3}, {}, 1, 5), 1);
}

std::map<int32_t, int> Histogram(const std::vector<float>& logits, const SamplingParams& params,
                                 int draws) {
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[SampleToken(logits, params, 7, i)];
  return counts;
}

TEST(SamplerTest, FrequenciesFollowSoftmaxOfTheTemperature) {
  const std::vector<float> logits = {0, 1, 2};
  const SamplingParams params{2.0f, 0, 1.0f, 42};
  constexpr int kDraws = 20000;
  const auto counts = Histogram(logits, params, kDraws);
  const double total = 1 + std::exp(0.5) + std::exp(1.0);
  for (int i = 0; i < 3; ++i) {
    const double p = std::exp(i * 0.5) / total;
    EXPECT_NEAR(counts.at(i), kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p)))
        << i;  // 5 standard deviations
  }
}

TEST(SamplerTest, TopKAndTopPCutTheTail) {
  const std::vector<float> logits = {0, 5, 4, 1};
  EXPECT_THAT(Histogram(logits, {1.0f, 2, 1.0f, 1}, 2000),
              testing::UnorderedElementsAre(testing::Key(1), testing::Key(2)));
  // softmax: .721, .265, .013, .005: .7 needs the first alone, .75 the first two.
  EXPECT_THAT(Histogram(logits, {1.0f, 0, 0.7f, 1}, 500),
              testing::UnorderedElementsAre(testing::Key(1)));
  EXPECT_THAT(Histogram(logits, {1.0f, 0, 0.75f, 1}, 2000),
              testing::UnorderedElementsAre(testing::Key(1), testing::Key(2)));
}

TEST(SamplerTest, DependsOnSeedRequestAndPositionAlone) {
  std::vector<float> logits(1000);
  for (int i = 0; i < 1000; ++i) logits[i] = std::sin(static_cast<float>(i));
  const SamplingParams params{1.0f, 0, 1.0f, 9};
  EXPECT_EQ(SampleToken(logits, params, 3, 11), SampleToken(logits, params, 3, 11));
  int differ = 0;
  for (int i = 0; i < 50; ++i)
    differ += SampleToken(logits, params, 3, i) != SampleToken(logits, params, 4, i);
  EXPECT_GT(differ, 40);
}

TEST(SamplerTest, RefusesWhatIsOutOfRange) {
  EXPECT_TRUE(CheckSampling({}).ok());
  for (const SamplingParams& bad :
       {SamplingParams{-1.0f, 0, 1.0f, 0}, SamplingParams{std::nanf(""), 0, 1.0f, 0},
        SamplingParams{1.0f, -1, 1.0f, 0}, SamplingParams{1.0f, 0, 0.0f, 0},
        SamplingParams{1.0f, 0, 1.5f, 0}}) {
    EXPECT_EQ(CheckSampling(bad).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace kvring
