// SPDX-License-Identifier: Apache-2.0
// What a shard allocates, as arithmetic: the sizes of its slots, and how many of each it holds at a length. The shard and
// KvBytes share these functions; kvstore's own.
//
// Slots of one layer: one a (KV head, block) for pages; one a block for exact rows, [block][kv_heads][dk] fp16, then
// [block][kv_heads][dv]; one for the sinks, [sinks][kv_heads][dk], then [sinks][kv_heads][dv]; and one a block of the
// prefix for what the statistics were taken from, [block][kv_heads][dk] keys before RoPE, then [block][query_heads][dk]
// queries: a cut inside the prefix must take them anew, since sums cannot be taken back to the bit.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/codec.h"
#include "kernels/visibility.h"
#include "runtime/base/shard_map.h"

namespace kvring {

struct SlotSizes {
  SlotSizes(const Codec& codec, const KvShape& shape);

  int64_t exact = 0, sinks = 0,
          stats = 0;           // bytes of one slot, padding included; 0: the codec has none
  int64_t state = 0;           // bytes of one layer's sequence state
  std::vector<int64_t> pages;  // [layers] one block, all heads, padding included
};

// Index of the first block of the sequence whose exact rows outlive CloseCells at `length`: blocks before it are encoded
// and no query from `length` on reads them exact. The number of blocks when none is kept. frozen: the codec's sequence
// state exists (true for codecs without one).
int64_t FirstKeptBlock(const CodecTraits& traits, const VisibilityRule& rule, int block_tokens,
                       int64_t length, bool frozen);

// Slots of one layer.
struct LayerSlots {
  int64_t pages = 0, exact = 0, stats = 0;  // blocks
  bool sinks = false, state = false;

  int64_t Bytes(const SlotSizes& sizes, int layer) const {
    return pages * sizes.pages[layer] + exact * sizes.exact + stats * sizes.stats +
           (sinks ? sizes.sinks : 0) + (state ? sizes.state : 0);
  }
};

// Between steps.
LayerSlots SlotsAtRest(const Codec& codec, const ShardMap& map, int slot, int64_t length,
                       const VisibilityRule& rule);

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace kvring
