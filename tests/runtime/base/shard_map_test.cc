// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/shard_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

namespace kvring {
namespace {

ShardMap Map(int ranks, int shards, int block, int rho) {
  absl::StatusOr<ShardMap> map = ShardMap::Create(ranks, shards, block, rho);
  EXPECT_TRUE(map.ok()) << map.status();
  return *map;
}

// The formulas of distributed-attention 2.1, written out a second time.
int NaiveShard(int64_t t, int block, int shards) {
  int64_t k = t / block % shards;
  int reversed = 0;
  for (int rest = shards; rest > 1; rest /= 2, k /= 2)
    reversed = reversed * 2 + static_cast<int>(k % 2);
  return reversed;
}

constexpr int kBlock = 64;
constexpr int kSmallBlock = 5;  // odd, and 3BV lengths times 64 shards stay quick

TEST(ShardMap, BijectionForEveryRankCountAndRotation) {
  for (const int shards : {1, 2, 8, 64}) {
    for (int ranks = 1; ranks <= std::min(8, shards); ++ranks) {
      for (int rho = 0; rho < ranks; ++rho) {
        const ShardMap map = Map(ranks, shards, kBlock, rho);
        for (int64_t t = 0; t < 3LL * kBlock * shards; ++t) {
          const int v = map.Shard(t);
          const int64_t u = map.LocalIndex(t);
          ASSERT_EQ(v, NaiveShard(t, kBlock, shards));
          ASSERT_EQ(map.Token(v, u), t);  // an inverse exists, so no two tokens share a place
          const int slot = map.Slot(v);
          ASSERT_GE(v, map.FirstShard(slot));
          ASSERT_LT(v, map.FirstShard(slot + 1));
          ASSERT_EQ(map.Home(t), (slot + rho) % ranks);
          ASSERT_EQ(map.SlotOfRank(map.Home(t)), slot);
        }
      }
    }
  }
}

TEST(ShardMap, CountsEqualBruteForceAndGrowthTouchesOneRank) {
  constexpr int kShards = 64;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const ShardMap map = Map(ranks, kShards, kSmallBlock, ranks - 1);
    std::vector<int64_t> slot_tokens(ranks), shard_tokens(kShards);
    for (int64_t length = 0; length < 3LL * kSmallBlock * kShards; ++length) {
      for (int v = 0; v < kShards; ++v) ASSERT_EQ(map.ShardTokens(v, length), shard_tokens[v]);
      int changed = 0;
      for (int j = 0; j < ranks; ++j) {
        ASSERT_EQ(map.SlotTokens(j, length), slot_tokens[j]) << length;
        changed += map.SlotTokens(j, length + 1) != slot_tokens[j];
      }
      ASSERT_EQ(changed, 1);
      ++shard_tokens[map.Shard(length)];
      ++slot_tokens[map.SlotOfRank(map.Home(length))];
    }
  }
}

TEST(ShardMap, LocalIndexCountsOwnTokensInOrder) {
  const ShardMap map = Map(3, 16, 64, 1);
  std::vector<int64_t> next(16);
  for (int64_t t = 0; t < 3 * 64 * 16; ++t) ASSERT_EQ(map.LocalIndex(t), next[map.Shard(t)]++);
}

double Imbalance(int ranks) {  // largest run over the mean run, V = 64
  const ShardMap map = Map(ranks, 64, 64, 0);
  int largest = 0;
  for (int j = 0; j < ranks; ++j) {
    largest = std::max(largest, map.FirstShard(j + 1) - map.FirstShard(j));
  }
  return largest * ranks / 64.0;
}

TEST(ShardMap, BalanceOfTheRuns) {
  for (const int ranks : {1, 2, 4, 8}) EXPECT_DOUBLE_EQ(Imbalance(ranks), 1.0);
  for (const int ranks : {3, 5, 6, 7}) {
    EXPECT_GE(Imbalance(ranks), 1.02 - 0.005);  // the spec prints two digits
    EXPECT_LE(Imbalance(ranks), 1.09 + 0.005) << ranks;
  }
}

// Any 512 neighbouring tokens that start at a multiple of 512 load every rank the same: what bit reversal is for.
TEST(ShardMap, ChunkOf512IsEvenlySpread) {
  for (const int ranks : {2, 4, 8}) {
    const ShardMap map = Map(ranks, 64, 64, 0);
    for (int64_t begin = 0; begin < 2 * 64 * 64; begin += 512) {
      for (int j = 0; j < ranks; ++j) {
        EXPECT_EQ(map.SlotTokens(j, begin + 512) - map.SlotTokens(j, begin), 512 / ranks);
      }
    }
  }
}

TEST(ShardMap, SubtreesAreAlignedMaximalAndCoverTheRun) {
  for (const int shards : {1, 2, 64, 4096}) {
    for (int ranks = 1; ranks <= std::min(shards, 9); ++ranks) {
      const ShardMap map = Map(ranks, shards, 64, 0);
      for (int slot = 0; slot < ranks; ++slot) {
        int next = map.FirstShard(slot);
        const int end = map.FirstShard(slot + 1);
        for (const Subtree& tree : map.Subtrees(slot)) {
          ASSERT_EQ(tree.first, next);
          ASSERT_EQ(tree.first % (1 << tree.level), 0);
          // The parent would be misaligned or leave the run.
          const int parent = 2 << tree.level;
          ASSERT_TRUE(tree.first % parent != 0 || tree.first + parent > end);
          next += 1 << tree.level;
        }
        ASSERT_EQ(next, end);
        if (shards == 64 && std::has_single_bit(static_cast<unsigned>(ranks))) {
          ASSERT_EQ(map.Subtrees(slot).size(), 1u);
        }
        if (shards == 64) {
          ASSERT_LE(map.Subtrees(slot).size(), 5u);  // distributed-attention 9, rule 3
        }
      }
    }
  }
}

TEST(ShardMap, PositionsBeyond32Bits) {
  const ShardMap map = Map(7, 4096, 64, 3);
  for (const int64_t t : {int64_t{1} << 31, (int64_t{1} << 33) + 77, (int64_t{1} << 45) - 1}) {
    EXPECT_EQ(map.Token(map.Shard(t), map.LocalIndex(t)), t);
    int64_t total = 0;
    for (int j = 0; j < 7; ++j) total += map.SlotTokens(j, t);
    EXPECT_EQ(total, t);
  }
}

TEST(ShardMap, RefusesWhatCannotBe) {
  for (const auto& [n, v, b, rho] : std::vector<std::array<int, 4>>{{0, 64, 64, 0},
                                                                    {65, 64, 64, 0},
                                                                    {4, 63, 64, 0},
                                                                    {4, 0, 64, 0},
                                                                    {4, 8192, 64, 0},
                                                                    {4, 64, 0, 0},
                                                                    {4, 64, 65537, 0},
                                                                    {4, 64, 64, 4},
                                                                    {4, 64, 64, -1}}) {
    EXPECT_EQ(ShardMap::Create(n, v, b, rho).status().code(), absl::StatusCode::kInvalidArgument)
        << n << " " << v << " " << b << " " << rho;
  }
}

}  // namespace
}  // namespace kvring
