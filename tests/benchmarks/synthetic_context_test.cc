// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/synthetic_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kvstore/codec_spec.h"
#include "runtime/engine/rank_group.h"
#include "tests/support/model_run.h"

namespace kvring {
namespace {

class SyntheticContextTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    TinyModelOptions tiny;
    tiny.hidden = 96;
    tiny.query_heads = 4;
    tiny.kv_heads = 2;
    tiny.head_dim = 32;
    tiny.ffn = 128;
    model_ = *MakeTestModel(tiny, LinearMath::kF32);
    for (const RopeTable& table : model_.config.rope) rope_.push_back(&table);
    options_.weights = model_.weights;
    options_.codec = *MakeCodec(GetParam(), model_.config.kv_shape(64), rope_);
    options_.numerics = model_.numerics;
    group_ = *RankGroup::Threads(1, 2, options_);
    context_ = std::make_unique<SyntheticContext>(&group_->leader(), model_.config, model_.numerics,
                                                  SyntheticOptions());
  }

  int64_t PlannedBytes(int64_t length) const {
    const ShardMap map = *ShardMap::Create(1, 64, 64, 0);
    return KvBytes(*options_.codec, model_.config.kv_shape(64), map, 0, length, options_.rule);
  }

  // Counted by the shard, kept outside the pool.
  int64_t StateBytes() const {
    return options_.codec->StateBytes() * model_.config.kv_heads * model_.config.layers;
  }

  std::vector<PageView> Pages(SequenceId id, int layer, int head) {
    std::vector<PageView> pages;
    for (int v = 0; v < 64; ++v) context_->shard(id).Pages(layer, head, v, pages);
    return pages;
  }

  TestModel model_;
  std::vector<const RopeTable*> rope_;
  ExecutorOptions options_;
  std::unique_ptr<RankGroup> group_;
  std::unique_ptr<SyntheticContext> context_;
};

TEST_P(SyntheticContextTest, EncodedContextsAreWhatAPrefillLeaves) {
  ASSERT_EQ(context_->MakeEncoded(1, 2048), absl::OkStatus());
  EXPECT_EQ(context_->shard(1).length(), 2048);
  EXPECT_EQ(context_->shard(1).bytes(), PlannedBytes(2048));
  for (int i = 0; i < 3; ++i) ASSERT_EQ(context_->Decode(1), absl::OkStatus());
  EXPECT_EQ(context_->shard(1).length(), 2051);
}

TEST_P(SyntheticContextTest, CopiedContextsHavePagesOfTheirOwn) {
  const int64_t length = kCopySourceTokens + 9 * 512;
  ASSERT_EQ(context_->MakeCopied(1, length), absl::OkStatus());
  EXPECT_EQ(context_->shard(1).length(), length);
  EXPECT_EQ(context_->shard(1).bytes(), PlannedBytes(length));
  EXPECT_EQ(group_->leader().kv().pool().bytes_in_use(), PlannedBytes(length) - StateBytes())
      << "the source is gone";
  std::set<const uint8_t*> places;
  std::set<int64_t> begins;
  for (int layer = 0; layer < 2; ++layer) {
    for (int head = 0; head < 2; ++head) {
      for (const PageView& page : Pages(1, layer, head)) {
        EXPECT_TRUE(places.insert(page.packed).second);
        EXPECT_EQ(page.tokens, 64);
        begins.insert(page.begin);
        // Every page has been written: no encoder gives zeros for Gaussian rows.
        const int64_t bytes = options_.codec->PageSize(layer, head).total();
        EXPECT_TRUE(std::any_of(page.packed, page.packed + bytes, [](uint8_t b) { return b; }));
      }
    }
  }
  EXPECT_EQ(static_cast<int64_t>(begins.size()), length / 64);
  EXPECT_EQ(static_cast<int64_t>(places.size()), length / 64 * 4);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(context_->Decode(1), absl::OkStatus());
}

TEST_P(SyntheticContextTest, ForksAreShorterContexts) {
  ASSERT_EQ(context_->MakeEncoded(1, 2048), absl::OkStatus());
  ASSERT_EQ(context_->Fork(2, 1, 1024), absl::OkStatus());
  EXPECT_EQ(context_->shard(2).length(), 1024);
  ASSERT_EQ(context_->Decode(2), absl::OkStatus());
  ASSERT_EQ(context_->Decode(1), absl::OkStatus());
  EXPECT_EQ(context_->shard(2).length(), 1025);
  EXPECT_EQ(context_->shard(1).length(), 2049);
  EXPECT_EQ(context_->Close(1), absl::OkStatus());
  EXPECT_EQ(context_->Decode(2), absl::OkStatus());
}

TEST_P(SyntheticContextTest, LengthsAreWholeCells) {
  for (const int64_t length : {0, 1000, 20000}) {
    const absl::Status status = context_->MakeCopied(1, length);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << length;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("cell of 512")) << length;
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, SyntheticContextTest, testing::Values("rot4", "f16", "int4"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace kvring
