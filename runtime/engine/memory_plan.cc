// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/memory_plan.h"

#include <algorithm>

#include "dist/distributed_attention.h"
#include "kvstore/sequence_shard.h"
#include "runtime/engine/transformer.h"

namespace kvring {
namespace {

// What ranks touch besides: a transport's shared segments, code that the matmul library makes on first use, the allocator's
// slack. 2 to 7 MiB a process were seen with Open MPI 4.1 and oneDNN 2.6, whatever the model.
constexpr int64_t kTransportBytes = int64_t{6} << 20;

}  // namespace

MemoryPlan PlanMemory(const ModelConfig& config, const Codec& codec, const ShardMap& map,
                      int64_t tokens, int64_t chunk, const VisibilityRule& rule) {
  const KvShape shape = config.kv_shape(map.block_tokens());
  chunk = std::min(chunk, tokens);
  MemoryPlan plan;
  for (int slot = 0; slot < map.ranks(); ++slot) {
    plan.kv_bytes = std::max(plan.kv_bytes, KvBytes(codec, shape, map, slot, tokens, rule));
    plan.kv_peak =
        std::max(plan.kv_peak, KvPeakBytes(codec, shape, map, slot, tokens, chunk, rule));
  }
  // A chunk is shared out by whole blocks, evenly but for one.
  const int64_t block = map.block_tokens(), blocks = (chunk + block - 1) / block;
  const int64_t rows = std::min(chunk, (blocks + map.ranks() - 1) / map.ranks() * block);
  const int64_t rotated =
      rows * config.query_heads * config.dk * static_cast<int64_t>(sizeof(float));
  plan.buffers = Transformer::BufferBytes(config, rows) + rotated +
                 DistributedAttention::BufferBytes(shape, map.ranks(), rows, chunk) +
                 (map.ranks() > 1 ? kTransportBytes : 0);
  return plan;
}

int64_t LargestContext(const ModelConfig& config, const Codec& codec, const ShardMap& map,
                       int64_t chunk, const VisibilityRule& rule, int64_t bytes, int64_t limit) {
  const auto fits = [&](int64_t tokens) {
    return PlanMemory(config, codec, map, tokens, chunk, rule).total() <= bytes;
  };
  if (limit <= 0 || fits(limit)) return std::max<int64_t>(limit, 0);
  int64_t low = 0, high = limit;  // low fits (nothing does), high does not
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace kvring
