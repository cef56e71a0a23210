// SPDX-License-Identifier: Apache-2.0
// Laws that hold for every codec: the mock in all its forms, then the codec table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "kernels/parallel.h"
#include "tests/kvstore/codec_subjects.h"
#include "tests/kvstore/shard_cluster.h"

namespace kvring {
namespace {

using ::testing::IsEmpty;

class ShardLaws : public ::testing::TestWithParam<size_t> {
 protected:
  const Subject& subject() const { return AllSubjects()[GetParam()]; }
  void SetUp() override {
    ASSERT_NE(subject().codec, nullptr) << subject().name;
    SetThreads(1);  // blocks here are too small to share out
  }
};

INSTANTIATE_TEST_SUITE_P(Codecs, ShardLaws, ::testing::Range<size_t>(0, AllSubjects().size()),
                         [](const auto& info) {
                           std::string name = AllSubjects()[info.param].name;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

constexpr VisibilityRule kCells{Visibility::kExactCell, 256};

// F16: stored codes do not depend on chunking, and not on how many ranks there are.
TEST_P(ShardLaws, SameBytesForEveryChunkingAndRankCount) {
  for (const VisibilityRule& rule : AllRules()) {
    ShardCluster whole(subject(), 1, rule);
    ASSERT_TRUE(whole.Step(300).ok());
    const ShardCluster::Content expected = whole.Read();
    ASSERT_FALSE(expected.empty());
    for (const int ranks : {1, 3}) {
      ShardCluster parts(subject(), ranks, rule);
      for (const int64_t end : {128, 256, 300}) ASSERT_TRUE(parts.Step(end).ok());
      EXPECT_EQ(parts.Read(), expected) << RuleName(rule) << " 128+128+44 on " << ranks;
      ShardCluster calls(subject(), ranks, rule);
      ASSERT_TRUE(calls.Step(300, /*parts=*/7).ok());
      EXPECT_EQ(calls.Read(), expected) << RuleName(rule) << " in 7 calls on " << ranks;
    }
    ShardCluster single(subject(), 4, rule);
    ASSERT_TRUE(single.Run(300, 1).ok());
    EXPECT_EQ(single.Read(), expected) << RuleName(rule) << " one by one";
  }
}

TEST_P(ShardLaws, SameBytesForRandomChunkingsAndPoisonedRests) {
  ShardCluster whole(subject(), 1, kCells);
  ASSERT_TRUE(whole.Step(700).ok());
  const ShardCluster::Content expected = whole.Read();
  for (int seed = 1; seed <= 4; ++seed) {
    std::mt19937 random(seed);
    ShardCluster cluster(subject(), 1 + seed, kCells);
    while (cluster.length() < 700) {
      const int64_t chunk = std::uniform_int_distribution<int64_t>(1, 150)(random);
      ASSERT_TRUE(cluster.Step(std::min<int64_t>(700, cluster.length() + chunk)).ok());
      cluster.PoisonUnused();
    }
    EXPECT_EQ(cluster.Read(), expected) << "seed " << seed;
  }
}

TEST_P(ShardLaws, BytesAreExactAtEveryLength) {
  for (const VisibilityRule& rule : AllRules()) {
    for (const int ranks : {1, 3, 4}) {
      ShardCluster cluster(subject(), ranks, rule);
      ASSERT_THAT(cluster.CheckBytes(), IsEmpty());
      while (cluster.length() < 700) {
        // Every length in the fast mock; real codecs at each block's edges and between them.
        const int64_t in_block = cluster.length() % 64;
        const bool edge = subject().is_mock || in_block < 2 || in_block >= 62;
        const int64_t step = edge ? 1 : std::min<int64_t>(20, 62 - in_block);
        ASSERT_TRUE(cluster.Step(cluster.length() + step).ok());
        ASSERT_THAT(cluster.CheckBytes(), IsEmpty());
      }
    }
  }
}

TEST_P(ShardLaws, PeakStaysBelowKvPeakBytes) {
  if (subject().codec->traits().growing_page) return;  // no bound can be known before the tokens
  for (const VisibilityRule& rule : AllRules()) {
    for (const int64_t chunk : {1, 37, 300, 2000}) {
      if (chunk == 1 && !subject().is_mock) continue;
      ShardCluster cluster(subject(), 3, rule);
      std::vector<int64_t> bound(3);
      while (cluster.length() < 2000) {
        const int64_t end = std::min<int64_t>(2000, cluster.length() + chunk);
        ASSERT_TRUE(cluster.Step(end).ok());
        for (int rank = 0; rank < 3; ++rank) {
          const int slot = cluster.map().SlotOfRank(rank);
          bound[rank] = std::max(bound[rank], KvPeakBytes(*subject().codec, subject().shape,
                                                          cluster.map(), slot, end, chunk, rule));
        }
      }
      ASSERT_THAT(cluster.CheckBytes(), IsEmpty());
      for (int rank = 0; rank < 3; ++rank) {
        EXPECT_LE(cluster.pool(rank).peak_bytes(), bound[rank]) << RuleName(rule) << " " << chunk;
        // The bound covers shorter steps, and the state, which does not lie in the pool; but it is no loose guess.
        const int64_t state =
            subject().codec->StateBytes() * subject().shape.kv_heads * subject().shape.layers;
        // The longer the prefix that stays exact, the more a step that ends with it holds beyond those taken here.
        const int64_t tenths = subject().codec->traits().prefix_tokens > 256 ? 7 : 8;
        EXPECT_GE(cluster.pool(rank).peak_bytes(), (bound[rank] - state) * tenths / 10)
            << RuleName(rule) << " " << chunk;
      }
    }
  }
}

// After Fork and Append all equals a sequence that was never anything else; the parent does not notice.
TEST_P(ShardLaws, ForkThenAppendEqualsFresh) {
  int forks = 0;
  for (const VisibilityRule& rule : AllRules()) {
    if (rule.kind == Visibility::kTeacher && !subject().is_mock) break;  // slow
    for (const int64_t parent_length : {100, 250, 700}) {
      ShardCluster parent(subject(), 3, rule);
      ASSERT_TRUE(parent.Step(parent_length).ok());
      const ShardCluster::Content before = parent.Read();
      for (const int64_t cut : {0, 1, 3, 64, 77, 100, 128, 200, 250, 512, 600, 640, 700}) {
        if (cut > parent_length) continue;
        auto fork = parent.Fork(cut);
        if (!fork.ok()) {
          EXPECT_EQ(fork.status().code(), absl::StatusCode::kFailedPrecondition);
          continue;
        }
        ++forks;
        EXPECT_THAT((*fork)->CheckBytes(false), IsEmpty()) << "cut " << cut;
        // To the end of an own block: slots beyond a cut may be stale until they are written again.
        ASSERT_TRUE((*fork)->Run(cut + 130, 50).ok());
        ASSERT_TRUE((*fork)->Run(900, 400).ok());
        ShardCluster fresh(subject(), 3, rule);
        ASSERT_TRUE(fresh.Run(cut + 130, 77).ok());
        ASSERT_TRUE(fresh.Run(900, 400).ok());
        EXPECT_TRUE((*fork)->Read() == fresh.Read())
            << RuleName(rule) << ": " << parent_length << " cut to " << cut;
        EXPECT_THAT((*fork)->CheckBytes(false), IsEmpty());
        EXPECT_TRUE(parent.Read() == before) << "the parent changed";
      }
      EXPECT_THAT(parent.CheckBytes(), IsEmpty()) << "the forks are gone";
    }
  }
  EXPECT_GE(forks, 20);  // most cuts work
}

// Both write into the block that was open at the fork; neither sees the other's rows.
TEST_P(ShardLaws, ParentAndForkGoDifferentWays) {
  ShardCluster parent(subject(), 2, kCells), lone(subject(), 2, kCells);
  ASSERT_TRUE(parent.Step(281).ok());
  ASSERT_TRUE(lone.Step(281).ok());
  auto fork = parent.Fork(281);
  ASSERT_TRUE(fork.ok());
  const ShardCluster::Content at_fork = (*fork)->Read();
  parent.SetBranch(1);
  lone.SetBranch(1);
  ASSERT_TRUE(parent.Run(300, 7).ok());
  EXPECT_TRUE((*fork)->Read() == at_fork) << "the fork saw the parent's tokens";
  ASSERT_TRUE((*fork)->Run(310, 10).ok());
  ASSERT_TRUE(parent.Run(500, 33).ok());
  ASSERT_TRUE((*fork)->Run(500, 60).ok());
  ASSERT_TRUE(lone.Run(500, 100).ok());
  EXPECT_TRUE(parent.Read() == lone.Read()) << "the parent saw the fork's tokens";
  ShardCluster fresh(subject(), 2, kCells);
  ASSERT_TRUE(fresh.Run(500, 90).ok());
  EXPECT_TRUE((*fork)->Read() == fresh.Read());
}

TEST_P(ShardLaws, TruncateEqualsFreshWhereRowsExist) {
  for (const VisibilityRule& rule : AllRules()) {
    for (const int64_t cut : {0, 5, 64, 100, 127, 150, 256, 300, 321, 340, 399}) {
      ShardCluster cluster(subject(), 3, rule);
      ASSERT_TRUE(cluster.Run(400, 90).ok());
      const absl::Status status = cluster.Truncate(cut);
      if (!status.ok()) {
        ASSERT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
        ASSERT_TRUE(cluster.Truncate(400).ok()) << "a refused cut changes nothing";
        ASSERT_THAT(cluster.CheckBytes(), IsEmpty());
        continue;
      }
      EXPECT_THAT(cluster.CheckBytes(), IsEmpty()) << RuleName(rule) << " " << cut;
      EXPECT_EQ(cluster.shard(0).length(), cut);
      ShardCluster fresh(subject(), 3, rule);
      ASSERT_TRUE(fresh.Run(cut, 1000).ok());
      if (rule.kind == Visibility::kExactCell && !subject().codec->traits().lossless) {
        EXPECT_TRUE(cluster.Read() == fresh.Read()) << "rows are there, so no stale slots";
      }
      ASSERT_TRUE(cluster.Run(450, 128).ok());
      ASSERT_TRUE(cluster.Run(640, 128).ok());
      ASSERT_TRUE(fresh.Run(450, 100).ok());
      ASSERT_TRUE(fresh.Run(640, 128).ok());
      EXPECT_TRUE(cluster.Read() == fresh.Read()) << RuleName(rule) << " " << cut;
      EXPECT_THAT(cluster.CheckBytes(), IsEmpty());
    }
  }
}

}  // namespace
}  // namespace kvring
