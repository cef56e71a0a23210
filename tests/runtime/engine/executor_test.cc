// SPDX-License-Identifier: Apache-2.0
// Plans executed as they are: fork, truncate, many sequences in a step, and what a bad plan does to a job.
#include "runtime/engine/executor.h"

#include <gtest/gtest.h>

#include "kvstore/codec_spec.h"
#include "runtime/base/hash.h"
#include "runtime/engine/rank_group.h"
#include "tests/support/model_run.h"

namespace kvring {
namespace {

const TestModel& Model() {
  static const TestModel model = [] {
    TinyModelOptions options;
    options.hidden = 96;
    options.query_heads = 4;
    options.kv_heads = 2;
    options.head_dim = 32;
    options.ffn = 128;
    return *MakeTestModel(options, LinearMath::kF32);
  }();
  return model;
}

std::unique_ptr<RankGroup> Group(const std::string& codec, int ranks) {
  std::vector<const RopeTable*> rope;
  for (const RopeTable& table : Model().config.rope) rope.push_back(&table);
  ExecutorOptions options;
  options.weights = Model().weights;
  options.codec = *MakeCodec(codec, Model().config.kv_shape(64), rope);
  options.timeout = absl::Minutes(1);
  options.numerics = Model().numerics;
  return *RankGroup::Threads(ranks, 1, options);
}

std::vector<int32_t> Ids(int64_t n, uint64_t seed = 5) { return RandomIds(n, 0, 256, seed); }

Slice MakeSliceOf(int64_t prefix, SequenceId id, int64_t begin, std::vector<int32_t> ids) {
  Slice slice;
  slice.sequence = id;
  slice.begin = begin;
  slice.ids = std::move(ids);
  slice.scheme = slice.tokens() > 4 ? Scheme::kGatherQ : Scheme::kReplicated;
  slice.mean_exchange = prefix > 0 && begin < prefix && slice.end() >= prefix;
  slice.want = Want::kLast;
  return slice;
}

StepPlan Plan(std::vector<SequenceOp> ops, std::vector<Slice> slices) {
  StepPlan plan;
  plan.numerics = Model().numerics;
  plan.ops = std::move(ops);
  plan.slices = std::move(slices);
  return plan;
}

uint64_t LastHidden(const absl::StatusOr<StepResult>& result, size_t slice = 0) {
  if (!result.ok()) {
    ADD_FAILURE() << result.status();
    return 0;
  }
  const std::vector<float>& hidden = result->outputs.at(slice).hidden;
  return Hash64(hidden.data(), static_cast<int64_t>(hidden.size() * sizeof(float)));
}

constexpr SequenceOp kCreate1{SequenceOp::Kind::kCreate, 1, 0, 0, 0};

class ExecutorTest : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::unique_ptr<RankGroup> group_ = Group(std::get<0>(GetParam()), std::get<1>(GetParam()));
  Executor& leader() { return group_->leader(); }
  Slice MakeSlice(SequenceId id, int64_t begin, std::vector<int32_t> ids) {
    return MakeSliceOf(leader().codec().traits().prefix_tokens, id, begin, std::move(ids));
  }
};

// One prefill, many questions: a fork answers as a sequence that read everything itself would, and the parent goes on undisturbed.
TEST_P(ExecutorTest, ForkAnswersAsIfItHadReadItAll) {
  const std::vector<int32_t> document = Ids(600), question = Ids(20, 9), other = Ids(30, 10);
  std::vector<int32_t> joined = document;
  joined.insert(joined.end(), question.begin(), question.end());
  const uint64_t fresh = LastHidden(leader().Lead(Plan({kCreate1}, {MakeSlice(1, 0, joined)})));

  ASSERT_TRUE(
      leader()
          .Lead(Plan({{SequenceOp::Kind::kCreate, 2, 0, 0, 0}}, {MakeSlice(2, 0, document)}))
          .ok());
  const StepPlan forks =
      Plan({{SequenceOp::Kind::kFork, 3, 2, 600, 0}, {SequenceOp::Kind::kFork, 4, 2, 600, 0}},
           {MakeSlice(3, 600, question), MakeSlice(4, 600, other)});
  EXPECT_EQ(LastHidden(leader().Lead(forks)), fresh);
  EXPECT_EQ(LastHidden(leader().Lead(Plan({}, {MakeSlice(2, 600, question)}))), fresh)
      << "the parent";
}

// Rejected tokens are taken back: after truncation a sequence is what it was.
TEST_P(ExecutorTest, TruncateTakesTokensBack) {
  const std::vector<int32_t> prompt = Ids(300), wrong = Ids(9, 21), right = Ids(9, 22);
  std::vector<int32_t> joined = prompt;
  joined.insert(joined.end(), right.begin(), right.end());
  const uint64_t fresh = LastHidden(leader().Lead(Plan({kCreate1}, {MakeSlice(1, 0, joined)})));
  ASSERT_TRUE(leader()
                  .Lead(Plan({{SequenceOp::Kind::kCreate, 2, 0, 0, 0}}, {MakeSlice(2, 0, prompt)}))
                  .ok());
  ASSERT_TRUE(leader().Lead(Plan({}, {MakeSlice(2, 300, wrong)})).ok());
  const StepPlan again =
      Plan({{SequenceOp::Kind::kTruncate, 2, 0, 300, 0}}, {MakeSlice(2, 300, right)});
  EXPECT_EQ(LastHidden(leader().Lead(again)), fresh);
}

TEST_P(ExecutorTest, ClosedSequencesGiveTheirBytesBack) {
  ASSERT_TRUE(leader().Lead(Plan({kCreate1}, {MakeSlice(1, 0, Ids(700))})).ok());
  StepPlan close = Plan({{SequenceOp::Kind::kClose, 1, 0, 0, 0}}, {});
  close.report = true;
  const auto result = leader().Lead(close);
  ASSERT_TRUE(result.ok()) << result.status();
  for (const RankReport& report : result->reports) {
    EXPECT_EQ(report.kv_bytes, 0);
    EXPECT_EQ(report.tokens, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, ExecutorTest,
                         testing::Combine(testing::Values("f16", "rot4", "int4"),
                                          testing::Values(1, 3)));

TEST(ExecutorFaults, ABadPlanEndsTheStepOnEveryRank) {
  const auto group = Group("rot4", 3);
  const auto result = group->leader().Lead(Plan({kCreate1}, {MakeSliceOf(0, 1, 7, Ids(10))}));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
  EXPECT_NE(std::string(result.status().message()).find("starts at 7"), std::string::npos)
      << result.status();
  EXPECT_FALSE(group->Stop().ok()) << "followers end too, with the error";
}

TEST(ExecutorFaults, OtherNumericsAreRefused) {
  const auto group = Group("f16", 2);
  StepPlan plan = Plan({kCreate1}, {MakeSliceOf(0, 1, 0, Ids(10))});
  plan.numerics = "int8/other";
  EXPECT_EQ(group->leader().Lead(plan).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace kvring
