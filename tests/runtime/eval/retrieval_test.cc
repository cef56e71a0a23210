// SPDX-License-Identifier: Apache-2.0
#include "runtime/eval/retrieval.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/elementwise.h"
#include "runtime/eval/eval_group.h"
#include "tests/runtime/eval/needle_fixture.h"

namespace kvring {
namespace {

constexpr int kTexts = 2, kDepths = 3;

const std::vector<NeedleText>& Texts() {
  static const std::vector<NeedleText> texts = [] {
    NeedleOptions options;
    options.texts = kTexts;
    options.depths = kDepths;
    options.length = 700;
    return *PlantNeedles(*Subject().tokenizer, Subject().ids, options);
  }();
  return texts;
}

EvalOptions Options(std::vector<std::string> codecs) {
  EvalOptions options;
  options.weights = Subject().model.weights;
  options.codecs = std::move(codecs);
  options.rule = {Visibility::kPacked, 512};
  options.numerics = Subject().model.numerics;
  return options;
}

RetrievalResult Asked(const EvalOptions& options) {
  const auto result = EvaluateRetrieval(options, Texts(), nullptr);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : RetrievalResult{};
}

// The text, the question and the answer read as one sequence, without forks: log-probability of the answer's tokens.
double PlainLogProb(const EvalOptions& options, const std::string& codec,
                    const std::vector<int32_t>& text, const Needle& needle) {
  const auto group = *MakeEvalGroup(options, codec);
  std::vector<int32_t> ids = text;
  ids.insert(ids.end(), needle.question.begin(), needle.question.end());
  const int64_t asked = static_cast<int64_t>(ids.size());
  ids.insert(ids.end(), needle.answer.begin(), needle.answer.end());
  StepPlan plan;
  plan.numerics = options.numerics;
  plan.ops.push_back({SequenceOp::Kind::kCreate, 1, 0, 0, 0});
  plan.slices.push_back(MakeEvalSlice(group->leader().codec(), 1, ids, 0,
                                      static_cast<int64_t>(ids.size()), Want::kAll));
  const auto result = group->leader().Lead(plan);
  EXPECT_TRUE(result.ok()) << result.status();
  const ModelConfig& config = Subject().model.config;
  std::vector<float> logits(config.vocab);
  double sum = 0;
  for (int64_t t = asked; t < static_cast<int64_t>(ids.size()); ++t) {
    const std::span<const float> row(result->outputs[0].hidden.data() + (t - 1) * config.hidden,
                                     config.hidden);
    EXPECT_TRUE(group->leader().transformer().Logits(row, 1, logits.data()).ok());
    sum += logits[ids[t]] - LogSumExp(logits.data(), config.vocab);
  }
  return sum;
}

TEST(RetrievalTest, RowsHoldWhatTheySay) {
  const RetrievalResult result = Asked(Options({"rot4", "f16", "int2"}));
  ASSERT_EQ(result.rows.size(), 3u);
  for (const RetrievalRow& row : result.rows) {
    ASSERT_EQ(row.needle_log_prob.size(), size_t{kTexts * kDepths});
    ASSERT_EQ(row.depth_log_prob.size(), size_t{kDepths});
    double mean = 0, over = 0;
    for (int j = 0; j < kDepths; ++j) {
      double depth = 0;
      for (int t = 0; t < kTexts; ++t) depth += row.needle_log_prob[t * kDepths + j] / kTexts;
      // Sums of a few numbers near 200, kept as float: 200 * 2^-24.
      EXPECT_NEAR(row.depth_log_prob[j], depth, 2e-5);
      mean += row.depth_log_prob[j] / kDepths;
      over += row.depth_over_f16[j] / kDepths;
    }
    EXPECT_NEAR(row.log_prob, mean, 2e-5);
    EXPECT_NEAR(row.over_f16, over, 2e-5);
    EXPECT_LE(row.ci95.first, row.over_f16 + 1e-9);
    EXPECT_GE(row.ci95.second, row.over_f16 - 1e-9);
    EXPECT_LT(row.log_prob, 0);
  }
  EXPECT_EQ(result.rows[1].over_f16, 0);
  EXPECT_EQ(result.rows[1].ci95, std::make_pair(0.0, 0.0));
  EXPECT_EQ(result.rows[1].bits, 16);
  EXPECT_NE(result.rows[2].over_f16, 0);
  EXPECT_NEAR(result.rows[0].over_f16, result.rows[0].log_prob - result.rows[1].log_prob, 2e-5);
  EXPECT_LT(result.control_log_prob, 0);
  EXPECT_NE(result.control_log_prob, result.rows[1].log_prob);
}

// Keys of a cell, pages and prefixes: each rule is a function of positions, so a fork must change no bit.
TEST(RetrievalTest, AForkedQuestionScoresLikeOneSequence) {
  for (const VisibilityRule rule :
       {VisibilityRule{Visibility::kPacked, 512}, VisibilityRule{Visibility::kExactCell, 512}}) {
    EvalOptions options = Options({"f16", "rot4", "int4"});
    options.rule = rule;
    const RetrievalResult result = Asked(options);
    ASSERT_EQ(result.rows.size(), 3u);
    for (size_t c = 0; c < result.rows.size(); ++c) {
      for (const int i : {0, kTexts * kDepths - 1}) {
        const NeedleText& text = Texts()[i / kDepths];
        const double plain =
            PlainLogProb(options, options.codecs[c], text.ids, text.needles[i % kDepths]);
        EXPECT_EQ(result.rows[c].needle_log_prob[i], static_cast<float>(plain))
            << options.codecs[c] << " needle " << i;
      }
    }
  }
}

TEST(RetrievalTest, TheControlReadsTheTextWithoutItsSentences) {
  const EvalOptions options = Options({"rot4"});
  double sum = 0;
  for (const NeedleText& text : Texts()) {
    for (const Needle& needle : text.needles)
      sum += PlainLogProb(options, "f16", text.excerpt, needle);
  }
  // The same numbers summed in another order.
  EXPECT_NEAR(Asked(options).control_log_prob, sum / (kTexts * kDepths), 1e-9);
}

TEST(RetrievalTest, RanksAndChunksChangeNothing) {
  EvalOptions options = Options({"rot3", "nf4"});
  const RetrievalResult one = Asked(options);
  options.ranks = 3;
  options.chunk = 200;
  const RetrievalResult three = Asked(options);
  ASSERT_EQ(three.rows.size(), 2u);
  for (int c = 0; c < 2; ++c) EXPECT_EQ(one.rows[c].needle_log_prob, three.rows[c].needle_log_prob);
  EXPECT_EQ(one.control_log_prob, three.control_log_prob);
}

TEST(RetrievalTest, TextsShorterThanACodecsPrefixWork) {
  NeedleOptions short_texts;
  short_texts.texts = 1;
  short_texts.depths = 1;
  short_texts.length = 165;  // rot's state is complete only while the question is read
  const auto texts = PlantNeedles(*Subject().tokenizer, Subject().ids, short_texts);
  ASSERT_TRUE(texts.ok()) << texts.status();
  ASSERT_LT(texts->front().ids.size(), 128u);
  const auto result = EvaluateRetrieval(Options({"rot4"}), *texts, nullptr);
  ASSERT_TRUE(result.ok()) << result.status();
  const double plain =
      PlainLogProb(Options({"rot4"}), "rot4", texts->front().ids, texts->front().needles.front());
  EXPECT_EQ(result->rows[0].needle_log_prob[0], static_cast<float>(plain));
}

TEST(RetrievalTest, RefusesBadOptions) {
  EXPECT_EQ(EvaluateRetrieval(Options({}), Texts(), nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EvaluateRetrieval(Options({"f16"}), {}, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
  EvalOptions teacher = Options({"f16"});
  teacher.rule.kind = Visibility::kTeacher;
  teacher.chunk = 64;
  EXPECT_EQ(EvaluateRetrieval(teacher, Texts(), nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvring
