// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/core_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace kvring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Cores Range(int begin, int end) {
  Cores cores(static_cast<size_t>(end - begin));
  std::iota(cores.begin(), cores.end(), begin);
  return cores;
}

TEST(CorePlan, PartsCoverAllCoresInOrder) {
  const Cores cores = {0, 1, 2, 5, 6, 9, 12};
  for (int parts = 1; parts <= 9; ++parts) {
    Cores all;
    for (int part = 0; part < parts; ++part) {
      const Cores of_part = PartOfCores(cores, part, parts);
      EXPECT_GE(of_part.size(), cores.size() / parts);
      EXPECT_LE(of_part.size(), cores.size() / parts + 1);
      all.insert(all.end(), of_part.begin(), of_part.end());
    }
    EXPECT_EQ(all, cores) << parts << " parts";
  }
}

TEST(CorePlan, ProcessesWithoutABindingDivideTheHost) {
  const std::vector<Cores> masks(3, Range(0, 8));
  EXPECT_THAT(ShareOfHost(masks, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(ShareOfHost(masks, 1), ElementsAre(3, 4, 5));
  EXPECT_THAT(ShareOfHost(masks, 2), ElementsAre(6, 7));
}

TEST(CorePlan, ABindingOfTheLauncherStays) {
  const std::vector<Cores> nodes = {Range(0, 4), Range(4, 8), Range(0, 4), Range(4, 8)};
  EXPECT_THAT(ShareOfHost(nodes, 0), ElementsAre(0, 1));
  EXPECT_THAT(ShareOfHost(nodes, 1), ElementsAre(4, 5));
  EXPECT_THAT(ShareOfHost(nodes, 2), ElementsAre(2, 3));
  EXPECT_THAT(ShareOfHost(nodes, 3), ElementsAre(6, 7));
  const std::vector<Cores> single = {{3}, {7}};
  EXPECT_THAT(ShareOfHost(single, 1), ElementsAre(7));
}

TEST(CorePlan, NoShareWhereCoresAreFewOrMasksCross) {
  const std::vector<Cores> crowd(3, Range(0, 2));
  EXPECT_THAT(ShareOfHost(crowd, 0), IsEmpty());
  const std::vector<Cores> crossed = {Range(0, 4), Range(2, 6), Range(6, 8)};
  EXPECT_THAT(ShareOfHost(crossed, 0), IsEmpty());
  EXPECT_THAT(ShareOfHost(crossed, 1), IsEmpty());
  EXPECT_THAT(ShareOfHost(crossed, 2), ElementsAre(6, 7));
}

TEST(CorePlan, ThreadsFillTheShare) {
  const absl::StatusOr<ThreadPlan> plan = PlanThreads(Range(4, 11), 3, 0, Pinning::kAuto);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->threads, 2);
  EXPECT_FALSE(plan->crowded);
  EXPECT_THAT(plan->cores, ElementsAre(Range(4, 7), Range(7, 9), Range(9, 11)));
}

TEST(CorePlan, MoreThreadsThanCoresAreNotBoundAndSleep) {
  for (const int asked : {0, 1, 3}) {
    const absl::StatusOr<ThreadPlan> plan = PlanThreads(Range(0, 2), 3, asked, Pinning::kAuto);
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->threads, std::max(1, asked));
    EXPECT_TRUE(plan->crowded);
    EXPECT_THAT(plan->cores, IsEmpty());
  }
  const absl::StatusOr<ThreadPlan> none = PlanThreads({}, 1, 0, Pinning::kAuto);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->threads, 1);
  EXPECT_TRUE(none->crowded);
}

TEST(CorePlan, ChoicesOfTheUser) {
  const absl::StatusOr<ThreadPlan> loose = PlanThreads(Range(0, 4), 2, 2, Pinning::kNone);
  ASSERT_TRUE(loose.ok());
  EXPECT_FALSE(loose->crowded);
  EXPECT_THAT(loose->cores, IsEmpty());
  EXPECT_TRUE(PlanThreads(Range(0, 4), 2, 2, Pinning::kCores).ok());
  const absl::Status refused = PlanThreads(Range(0, 4), 2, 3, Pinning::kCores).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("2 ranks with 3 threads on 4 cores"));
  EXPECT_EQ(*ParsePinning("auto"), Pinning::kAuto);
  EXPECT_EQ(*ParsePinning("none"), Pinning::kNone);
  EXPECT_EQ(*ParsePinning("cores"), Pinning::kCores);
  EXPECT_THAT(std::string(ParsePinning("all").status().message()), HasSubstr("--pin 'all'"));
}

TEST(CorePlan, AllowedCoresAscend) {
  const Cores cores = AllowedCores();
  ASSERT_FALSE(cores.empty());
  EXPECT_TRUE(std::is_sorted(cores.begin(), cores.end()));
}

}  // namespace
}  // namespace kvring
