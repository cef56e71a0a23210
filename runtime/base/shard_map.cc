// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/shard_map.h"

#include <algorithm>
#include <bit>

namespace kvring {

ShardMap::ShardMap(int ranks, int virtual_shards, int block_tokens, int rho)
    : ranks_(ranks),
      virtual_shards_(virtual_shards),
      block_tokens_(block_tokens),
      rho_(rho),
      bits_(std::countr_zero(static_cast<unsigned>(virtual_shards))) {}

absl::StatusOr<ShardMap> ShardMap::Create(int ranks, int virtual_shards, int block_tokens,
                                          int rho) {
  if (virtual_shards < 1 || virtual_shards > 4096 ||
      !std::has_single_bit(static_cast<unsigned>(virtual_shards))) {
    return absl::InvalidArgumentError(
        absl::StrCat("virtual shards must be a power of two from 1 to 4096, not ", virtual_shards));
  }
  if (ranks < 1 || ranks > virtual_shards) {
    return absl::InvalidArgumentError(absl::StrCat("ranks must be from 1 to the ", virtual_shards,
                                                   " virtual shards, not ", ranks));
  }
  if (block_tokens < 1 || block_tokens > 65536) {
    return absl::InvalidArgumentError(
        absl::StrCat("a block must have 1 to 65536 tokens, not ", block_tokens));
  }
  if (rho < 0 || rho >= ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotation must be from 0 to ", ranks - 1, ", not ", rho));
  }
  return ShardMap(ranks, virtual_shards, block_tokens, rho);
}

int ShardMap::Reverse(int v) const {
  int reversed = 0;
  for (int bit = 0; bit < bits_; ++bit) reversed |= ((v >> bit) & 1) << (bits_ - 1 - bit);
  return reversed;
}

int ShardMap::Shard(int64_t token) const {
  return Reverse(static_cast<int>((token / block_tokens_) % virtual_shards_));
}

// The j with ceil(jV/N) <= v < ceil((j+1)V/N) is floor(vN/V).
int ShardMap::Slot(int virtual_shard) const { return virtual_shard * ranks_ / virtual_shards_; }

int ShardMap::Home(int64_t token) const { return RankOfSlot(Slot(Shard(token))); }

int ShardMap::RankOfSlot(int slot) const { return (slot + rho_) % ranks_; }

int ShardMap::SlotOfRank(int rank) const { return (rank + ranks_ - rho_) % ranks_; }

int ShardMap::FirstShard(int slot) const { return (slot * virtual_shards_ + ranks_ - 1) / ranks_; }

int64_t ShardMap::LocalIndex(int64_t token) const {
  const int64_t cycle = token / block_tokens_ / virtual_shards_;
  return cycle * block_tokens_ + token % block_tokens_;
}

int64_t ShardMap::Token(int virtual_shard, int64_t local_index) const {
  const int64_t cycle = local_index / block_tokens_;
  const int64_t block = cycle * virtual_shards_ + Reverse(virtual_shard);
  return block * block_tokens_ + local_index % block_tokens_;
}

int64_t ShardMap::ShardTokens(int virtual_shard, int64_t length) const {
  const int64_t cycle_tokens = static_cast<int64_t>(block_tokens_) * virtual_shards_;
  const int64_t before = static_cast<int64_t>(Reverse(virtual_shard)) * block_tokens_;
  const int64_t open = std::clamp<int64_t>(length % cycle_tokens - before, 0, block_tokens_);
  return length / cycle_tokens * block_tokens_ + open;
}

int64_t ShardMap::SlotTokens(int slot, int64_t length) const {
  int64_t tokens = 0;
  for (int v = FirstShard(slot); v < FirstShard(slot + 1); ++v) tokens += ShardTokens(v, length);
  return tokens;
}

std::vector<Subtree> ShardMap::Subtrees(int slot) const {
  std::vector<Subtree> subtrees;
  const int end = FirstShard(slot + 1);
  for (int first = FirstShard(slot); first < end;) {
    int level = first == 0 ? bits_ : std::countr_zero(static_cast<unsigned>(first));
    while (first + (1 << level) > end) --level;
    subtrees.push_back({first, level});
    first += 1 << level;
  }
  return subtrees;
}

}  // namespace kvring
