// SPDX-License-Identifier: Apache-2.0
// Attention of one layer over sequences whose keys and values are sharded over ranks (distributed-attention spec 3.2, 5, 9).
//
// Every rank attends the queries of all ranks to its own virtual shards and makes one partial per maximal aligned subtree
// of its run; the partials travel, and the receiver finishes the fixed binary tree over virtual shards. So the result is
// the same bits for every rank count. Two ways to exchange, chosen per slice by the plan:
//   replicated  every rank holds the slice's queries already (decode): one all-gather of partials, merged everywhere.
//   gather-Q    each rank holds the queries of its own tokens (prefill): all-gather of Q, all-to-all of partials back to the home rank.
// All slices of a step share one exchange of each kind a layer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dist/communicator.h"
#include "dist/kv_source.h"
#include "kernels/attention.h"
#include "runtime/base/shard_map.h"

namespace kvring {

struct AttentionSlice {
  const KvSource* kv = nullptr;  // this rank's shard of the sequence
  const ShardMap* map = nullptr;
  VisibilityRule rule;
  int64_t begin = 0;   // position of the first query
  int64_t tokens = 0;  // queries of the slice, all ranks together
  bool replicated = false;
};

struct DistributedAttentionOptions {
  KvShape shape;
  std::vector<const RopeTable*> rope;  // [layers]
  int piece_tokens =
      2048;  // local tokens of one virtual shard accumulated as one piece: part of the numerics
  AttentionForm form;  // part of the numerics too
  // What queries and partials of one round of exchanges may take on a rank: longer chunks go in several rounds. The same on
  // all ranks; no bit depends on it.
  int64_t round_bytes = int64_t{64} << 20;
};

class DistributedAttention {
 public:
  // comm outlives the object.
  static std::unique_ptr<DistributedAttention> Create(Communicator* comm,
                                                      const DistributedAttentionOptions& options);
  virtual ~DistributedAttention() = default;

  // Bytes of the buffers of a step: own_rows query tokens here, step_tokens of all ranks together. What a memory plan counts.
  static int64_t BufferBytes(const KvShape& shape, int ranks, int64_t own_rows,
                             int64_t step_tokens);

  // Own rows: slice by slice, a replicated slice's tokens all, a gather-Q slice's tokens whose home is this rank, in order.
  // q: [own rows][query_heads][dk] after RoPE, unscaled. out: [own rows][query_heads][dv], back in the plain value domain.
  // Every rank calls it for every layer with the same slices, also with no rows of its own.
  // INTERNAL naming layer, head and position when a row comes out empty or not finite.
  virtual absl::Status Run(int layer, std::span<const AttentionSlice> slices, const float* q,
                           float* out, Deadline deadline) = 0;
};

}  // namespace kvring
