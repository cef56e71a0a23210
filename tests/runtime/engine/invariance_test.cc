// SPDX-License-Identifier: Apache-2.0
// The law that everything distributed is tested by: the same prompt gives the same tokens and the same bits on any number
// of ranks, with any chunks, in any company (F12).
#include <gtest/gtest.h>

#include <tuple>

#include "kvstore/codec_spec.h"
#include "tests/support/model_run.h"
#include "tests/support/nuq_tables.h"
#include "tests/support/tc_tables.h"

namespace kvring {
namespace {

TinyModelOptions SmallModel() {
  TinyModelOptions options;
  options.hidden = 128;
  options.query_heads = 6;
  options.kv_heads = 2;
  options.head_dim = 32;
  options.ffn = 192;
  return options;
}

const TestModel& Model() {
  static const TestModel model = *MakeTestModel(SmallModel(), LinearMath::kF32);
  return model;
}

std::vector<int32_t> Prompt(int64_t tokens) { return RandomIds(tokens, 0, 256, 11); }

std::shared_ptr<const CodecTables> TablesFor(const std::string& codec) {
  if (!NeedsCalibration(codec)) return nullptr;
  const KvShape shape = Model().config.kv_shape(64);
  return codec.rfind("tc", 0) == 0 ? TestTcTables(shape, {.sides = 1.0f}) : TestNuqTables(shape);
}

void ExpectSame(const GreedyRun& a, const GreedyRun& b, const std::string& what) {
  EXPECT_EQ(a.tokens, b.tokens) << what;
  EXPECT_EQ(a.hashes, b.hashes) << what;
}

class InvarianceTest : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(InvarianceTest, RanksChunksAndCompanyChangeNothing) {
  const auto& [codec, tokens] = GetParam();
  const std::vector<int32_t> prompt = Prompt(tokens);
  GreedyOptions base;
  base.codec = codec;
  base.tables = TablesFor(codec);
  base.chunk = 1 << 20;
  const auto whole = RunGreedy(Model(), prompt, base);
  ASSERT_TRUE(whole.ok()) << whole.status();
  for (const auto& [ranks, chunk, company] :
       std::vector<std::tuple<int, int64_t, bool>>{{1, 37, false},
                                                   {1, 512, true},
                                                   {2, 64, false},
                                                   {3, 37, true},
                                                   {3, 512, false},
                                                   {4, 1 << 20, false},
                                                   {5, 512, true},
                                                   {8, 64, true},
                                                   {8, 1 << 20, false},
                                                   {4, 1, false}}) {
    if (chunk == 1 && tokens > 700)
      continue;  // covered at 600 tokens, across a cell; 3000 steps say no more
    GreedyOptions options = base;
    options.ranks = ranks;
    options.chunk = chunk;
    options.rho = ranks > 2 ? 1 : 0;
    if (company) options.company = {Prompt(70), Prompt(260)};
    const auto run = RunGreedy(Model(), prompt, options);
    ASSERT_TRUE(run.ok()) << run.status();
    ExpectSame(*whole, *run,
               absl::StrCat(codec, " ", tokens, " tokens, ", ranks, " ranks, chunk ", chunk,
                            company ? ", in company" : ""));
  }
}

// The same where rot's pages are read by integer dot products.
TEST(Int8AttentionTest, RanksChunksAndCompanyChangeNothing) {
  for (const char* codec : {"rot4", "rot2"}) {
    GreedyOptions base;
    base.codec = codec;
    base.attention.math = AttentionMath::kInt8;
    base.chunk = 1 << 20;
    const std::vector<int32_t> prompt = Prompt(1200);
    const auto whole = RunGreedy(Model(), prompt, base);
    ASSERT_TRUE(whole.ok()) << whole.status();
    GreedyOptions tiles = base;
    tiles.attention.math = AttentionMath::kTile;
    const auto other = RunGreedy(Model(), prompt, tiles);
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_NE(whole->hashes, other->hashes) << "the integer form was not used";
    for (const auto& [ranks, chunk, company] : std::vector<std::tuple<int, int64_t, bool>>{
             {1, 37, false}, {1, 512, true}, {2, 64, false}, {4, 1 << 20, true}, {4, 300, false}}) {
      GreedyOptions options = base;
      options.ranks = ranks;
      options.chunk = chunk;
      if (company) options.company = {Prompt(70), Prompt(260)};
      const auto run = RunGreedy(Model(), prompt, options);
      ASSERT_TRUE(run.ok()) << run.status();
      ExpectSame(*whole, *run, absl::StrCat(codec, " int8, ", ranks, " ranks, chunk ", chunk));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, InvarianceTest,
                         testing::Combine(testing::Values("f16", "rot4", "rot2", "int4"),
                                          testing::Values(100, 600, 3000)));

INSTANTIATE_TEST_SUITE_P(Calibrated, InvarianceTest,
                         testing::Combine(testing::Values("nuq3-1%", "nuq2-1%:paper", "tc3",
                                                          "tc@1.7", "tc2:adapt"),
                                          testing::Values(600)));

TEST(InvarianceTest, EveryVisibilityThatIsAFunctionOfPositions) {
  const std::vector<int32_t> prompt = Prompt(300);
  for (const VisibilityRule rule :
       {VisibilityRule{Visibility::kPacked, 512}, VisibilityRule{Visibility::kExactCell, 64}}) {
    for (const char* codec :
         {"rot3", "nf4", "nuq3-1%", "nuq2-1%:token", "nuq4-0.5%:paper", "tc2.5"}) {
      GreedyOptions options;
      options.codec = codec;
      options.tables = TablesFor(codec);
      options.rule = rule;
      options.chunk = 1 << 20;
      const auto whole = RunGreedy(Model(), prompt, options);
      options.ranks = 3;
      options.chunk = 50;
      const auto parts = RunGreedy(Model(), prompt, options);
      ASSERT_TRUE(whole.ok() && parts.ok()) << whole.status() << parts.status();
      ExpectSame(*whole, *parts, codec);
    }
  }
}

// Replicated (every rank computes the slice) and gather-Q slices are two schedules of one sum.
TEST(InvarianceTest, SchemesAgree) {
  GreedyOptions options;
  options.codec = "rot4";
  options.ranks = 3;
  options.chunk = 40;
  const auto gather = RunGreedy(Model(), Prompt(200), options);
  options.replicated_limit = 1000;
  const auto replicated = RunGreedy(Model(), Prompt(200), options);
  ASSERT_TRUE(gather.ok() && replicated.ok());
  ExpectSame(*gather, *replicated, "schemes");
}

// F12: lengths around every border, ranks that hold nothing, and the steps in which a new token moves to another rank.
TEST(F12AnyLengthOnAnyRankCount, SameTokensAndBits) {
  for (const int64_t length : {1, 2, 3, 5, 8, 17, 63, 64, 65, 255, 256, 257, 1000}) {
    GreedyOptions options;
    options.codec = "rot4";
    const auto one = RunGreedy(Model(), Prompt(length), options);
    ASSERT_TRUE(one.ok()) << one.status();
    for (const int ranks : {2, 3, 4, 5, 8}) {
      options.ranks = ranks;
      const auto run = RunGreedy(Model(), Prompt(length), options);
      ASSERT_TRUE(run.ok()) << run.status();
      ExpectSame(*one, *run, absl::StrCat(length, " tokens on ", ranks, " ranks"));
      int64_t stored = 0;
      for (const RankReport& report : run->reports) stored += report.tokens;
      EXPECT_EQ(stored, length + 7) << "the last of 8 new tokens is not run through the model";
    }
  }
}

TEST(F12AnyLengthOnAnyRankCount, LengthZeroIsRefused) {
  const auto run = RunGreedy(Model(), {}, {});
  EXPECT_EQ(run.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(EngineTest, TooManyRanksOrIdsOutsideTheVocabularyAreRefused) {
  GreedyOptions options;
  options.ranks = 65;  // virtual shards: 64
  EXPECT_EQ(RunGreedy(Model(), Prompt(10), options).status().code(),
            absl::StatusCode::kInvalidArgument);
  options.ranks = 2;
  const auto run = RunGreedy(Model(), {1, 2, 100000}, options);
  EXPECT_EQ(run.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(run.status().message()).find("100000"), std::string::npos) << run.status();
}

}  // namespace
}  // namespace kvring
