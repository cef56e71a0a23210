// SPDX-License-Identifier: Apache-2.0
// A rank's cache of one sequence in plain memory, for tests of what reads caches: every row stays exact, whole blocks are
// packed as well (lossless codecs pack every row and keep no exact ones). Rows are made up from their position.
#pragma once

#include <memory>
#include <vector>

#include "dist/kv_source.h"
#include "runtime/base/shard_map.h"

namespace kvring {

// What a row holds: a pure function of (seed, layer, position, head), fp16-representable, about normal, with a planted
// outlier channel in the keys.
using RowMaker = void (*)(uint64_t seed, int layer, int64_t position, int head, float* row, int n);
void NormalKeys(uint64_t seed, int layer, int64_t position, int head, float* row, int n);
void NormalRow(uint64_t seed, int layer, int64_t position, int head, float* row, int n);

struct MemoryKvOptions {
  std::shared_ptr<const Codec> codec;  // without sequence state
  KvShape shape;
  int rank = 0;
  int64_t length = 0;  // tokens of the sequence
  uint64_t seed = 1;
  RowMaker keys = NormalKeys, values = NormalRow;  // key domain, value domain
};

class MemoryKv : public KvSource {
 public:
  MemoryKv(const MemoryKvOptions& options, const ShardMap& map);
  const Codec& codec() const override { return *options_.codec; }
  const float* State(int, int) const override { return nullptr; }
  void Pages(int layer, int head, int virtual_shard, std::vector<PageView>& pages) const override;

 private:
  struct Block {
    int64_t begin = 0;
    int tokens = 0;
    std::vector<uint8_t> packed;
    std::vector<Half> k, v;  // [tokens][n]
  };
  Block MakeBlock(int layer, int head, int64_t begin) const;
  size_t Index(int layer, int head, int virtual_shard) const;

  MemoryKvOptions options_;
  ShardMap map_;
  std::vector<std::vector<Block>> blocks_;  // by layer, head, virtual shard
};

}  // namespace kvring
