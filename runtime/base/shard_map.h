// SPDX-License-Identifier: Apache-2.0
// Which rank holds which token: block-cyclic over virtual shards in bit-reversed order (distributed-attention spec 2.1).
// Pure arithmetic without state. It lives here, below both kvstore and dist, since neither may include the other.
//
// Block number k = t / B lies on virtual shard rev(k mod V). Rank slot j owns the virtual shards [ceil(jV/N),
// ceil((j+1)V/N)); slot j of a sequence with rotation rho is rank (j + rho) mod N. Local index u of token t within its
// virtual shard counts the shard's own tokens in order.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/status.h"

namespace kvring {

// A maximal aligned run of virtual shards: [first, first + (1 << level)), first a multiple of 1 << level.
struct Subtree {
  int first = 0;
  int level = 0;
  bool operator==(const Subtree&) const = default;
};

class ShardMap {
 public:
  // ranks in [1, virtual_shards]; virtual_shards a power of two in [1, 4096]; block_tokens in [1, 65536]. rho in [0, ranks).
  static absl::StatusOr<ShardMap> Create(int ranks, int virtual_shards, int block_tokens, int rho);

  int ranks() const { return ranks_; }
  int virtual_shards() const { return virtual_shards_; }
  int block_tokens() const { return block_tokens_; }
  int rho() const { return rho_; }

  int Shard(int64_t token) const;           // virtual shard of a token
  int Slot(int virtual_shard) const;        // slot that owns a virtual shard
  int Home(int64_t token) const;            // rank of a token
  int RankOfSlot(int slot) const;           // (slot + rho) mod N
  int SlotOfRank(int rank) const;           // its inverse
  int FirstShard(int slot) const;           // ceil(slot V / N); FirstShard(N) is V
  int64_t LocalIndex(int64_t token) const;  // u: index among the tokens of its own virtual shard
  int64_t Token(int virtual_shard, int64_t local_index) const;  // inverse of (Shard, LocalIndex)
  int64_t ShardTokens(int virtual_shard,
                      int64_t length) const;  // tokens of a virtual shard in a sequence of `length`
  int64_t SlotTokens(int slot, int64_t length) const;  // tokens of a slot's run
  // The slot's run as maximal aligned subtrees, ascending: 1 for N = 1, 2, 4, 8; a few otherwise.
  std::vector<Subtree> Subtrees(int slot) const;

 private:
  ShardMap(int ranks, int virtual_shards, int block_tokens, int rho);
  int Reverse(int v) const;  // bits of v in reverse, log2(V) of them
  int ranks_, virtual_shards_, block_tokens_, rho_, bits_;
};

}  // namespace kvring
