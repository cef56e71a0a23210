// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/step_plan.h"

#include <gtest/gtest.h>

namespace kvring {
namespace {

TEST(StepPlanTest, ComesBackAsItWas) {
  StepPlan plan;
  plan.epoch = 3;
  plan.step = uint64_t{1} << 40;
  plan.numerics = "bf16/x";
  plan.last = true;
  plan.report = true;
  plan.ops = {{SequenceOp::Kind::kCreate, 1, 0, 0, 2},
              {SequenceOp::Kind::kFork, 2, 1, 77, 0},
              {SequenceOp::Kind::kTruncate, 2, 0, 50, 0},
              {SequenceOp::Kind::kClose, 1, 0, 0, 0}};
  plan.slices = {{1, int64_t{1} << 33, {5, 0, 49151}, Scheme::kGatherQ, true, Want::kAll},
                 {2, 9, {7}, Scheme::kReplicated, false, Want::kLast}};
  const auto parsed = ParsePlan(SerializePlan(plan));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(SerializePlan(*parsed), SerializePlan(plan));
  EXPECT_EQ(parsed->slices[0].begin, int64_t{1} << 33);
  EXPECT_EQ(parsed->slices[0].ids, plan.slices[0].ids);
  EXPECT_EQ(parsed->slices[0].scheme, Scheme::kGatherQ);
  EXPECT_TRUE(parsed->slices[0].mean_exchange);
  EXPECT_EQ(parsed->slices[1].want, Want::kLast);
  EXPECT_EQ(parsed->ops[1].source, 1u);
  EXPECT_EQ(parsed->ops[3].kind, SequenceOp::Kind::kClose);
  EXPECT_TRUE(parsed->last && parsed->report);
}

TEST(StepPlanTest, RefusesBytesThatAreNoPlan) {
  EXPECT_EQ(ParsePlan(std::string("\xff\xff\xff\xff", 4)).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(StepPlanTest, RefusesWhatThisBuildCannotRun) {
  // Field 5 (a slice) holding field 4 (scheme) = 3, pass-KV.
  EXPECT_EQ(ParsePlan(std::string("\x2a\x02\x20\x03", 4)).status().code(),
            absl::StatusCode::kUnimplemented);
  // Scheme 2 (gather-Q) and field 6 (want) = 9.
  EXPECT_FALSE(ParsePlan(std::string("\x2a\x04\x20\x02\x30\x09", 6)).ok());
  // A slice without a scheme is no slice.
  EXPECT_FALSE(ParsePlan(std::string("\x2a\x00", 2)).ok());
}

}  // namespace
}  // namespace kvring
