// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/run_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "benchmarks/line_fit.h"
#include "benchmarks/machine_peak.h"

namespace kvring {
namespace {

TEST(RunFacts, NameCommitAndCpu) {
  std::vector<std::string> names;
  for (const auto& [name, value] : RunFacts()) {
    names.push_back(name);
    EXPECT_NE(value, "") << name;
  }
  EXPECT_THAT(names, testing::ElementsAre("commit", "date", "cpu", "cores", "simd", "l3_bytes",
                                          "memory_bytes", "huge_pages", "load"));
  EXPECT_THAT(SourceCommit(), testing::MatchesRegex("unknown|[0-9a-f]{12,40}(-dirty)?"));
  EXPECT_GE(CpuCores(), 1);
  EXPECT_GE(SwappedBytes(), 0);
}

TEST(LineFit, IsExactOnALineAndKnowsSpread) {
  const std::vector<double> x{1, 2, 4, 8}, line{5, 7, 11, 19}, bent{1, 1, 1, 5};
  const LineFit exact = FitLine(x, line);
  EXPECT_DOUBLE_EQ(exact.slope, 2);
  EXPECT_DOUBLE_EQ(exact.intercept, 3);
  EXPECT_DOUBLE_EQ(exact.r2, 1);
  // By hand: means 3.75 and 2, xx = 28.75, xy = 17, yy = 12.
  const LineFit loose = FitLine(x, bent);
  EXPECT_NEAR(loose.slope, 17 / 28.75, 1e-12);
  EXPECT_NEAR(loose.r2, 17.0 * 17 / (28.75 * 12), 1e-12);
}

// Both are rates of the same kind of reading; neither can be below a hundredth of what memory of the last decades does.
TEST(MachinePeak, ReadsMemory) {
  EXPECT_GT(PeakReadBytes(int64_t{8} << 20), 1e8);
  EXPECT_GT(PeakReadBytesAll(2, int64_t{8} << 20), 1e8);
}

}  // namespace
}  // namespace kvring
