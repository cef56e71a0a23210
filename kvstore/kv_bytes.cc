// SPDX-License-Identifier: Apache-2.0
#include "kvstore/kv_bytes.h"

#include <algorithm>

#include "kvstore/page_pool.h"
#include "kvstore/sequence_shard.h"

namespace kvring {
namespace {

int64_t RowElements(const KvShape& shape) {
  return static_cast<int64_t>(shape.kv_heads) * (shape.dk + shape.dv);
}

// Blocks [0, end) of the sequence that lie on the slot.
int64_t BlocksBefore(const ShardMap& map, int slot, int64_t end) {
  return map.SlotTokens(slot, end * map.block_tokens()) / map.block_tokens();
}

bool Frozen(const CodecTraits& traits, int64_t length) { return length >= traits.prefix_tokens; }

// Blocks of the sequence that are encoded at a length: always the first ones.
int64_t EncodedBlocks(const CodecTraits& traits, int block_tokens, int64_t length, bool frozen) {
  if (!frozen) return 0;
  return traits.page_scoped() ? length / block_tokens : CeilDiv(length, block_tokens);
}

// What the running layer holds while a step takes the sequence from `before` to `length`: the rows of the whole step,
// first with the pages of before (after Append), then with the new ones (after EncodeReady).
struct StepSlots {
  LayerSlots appended, encoded;
};

StepSlots SlotsInStep(const Codec& codec, const ShardMap& map, int slot, int64_t before,
                      int64_t length, const VisibilityRule& rule) {
  const CodecTraits& traits = codec.traits();
  const int block = map.block_tokens();
  StepSlots slots{SlotsAtRest(codec, map, slot, before, rule),
                  SlotsAtRest(codec, map, slot, length, rule)};
  if (traits.lossless) return slots;
  const int64_t kept = FirstKeptBlock(traits, rule, block, before, Frozen(traits, before));
  const int64_t first = std::min(kept, before / block);
  const int64_t end = CeilDiv(length, block);
  slots.appended.exact = BlocksBefore(map, slot, end) - BlocksBefore(map, slot, first);
  slots.encoded.exact = slots.appended.exact;
  // Rows for statistics stay until exact rows go for the first time.
  const int64_t prefix = std::min<int64_t>(end, traits.prefix_tokens / block);
  slots.appended.stats = kept == 0 && codec.SumFloats() > 0 ? BlocksBefore(map, slot, prefix) : 0;
  slots.encoded.stats = slots.appended.stats;
  slots.appended.sinks = slots.encoded.sinks;
  return slots;
}

// Layers before the running one are done with the step, those after it have not begun.
int64_t StepPeak(const Codec& codec, const KvShape& shape, const SlotSizes& sizes,
                 const ShardMap& map, int slot, int64_t before, int64_t length,
                 const VisibilityRule& rule) {
  const LayerSlots old_slots = SlotsAtRest(codec, map, slot, before, rule);
  const LayerSlots new_slots = SlotsAtRest(codec, map, slot, length, rule);
  const StepSlots running = SlotsInStep(codec, map, slot, before, length, rule);
  int64_t others = 0;
  for (int layer = 0; layer < shape.layers; ++layer) others += old_slots.Bytes(sizes, layer);
  int64_t peak = others;
  for (int layer = 0; layer < shape.layers; ++layer) {
    others -= old_slots.Bytes(sizes, layer);
    const int64_t own =
        std::max(running.appended.Bytes(sizes, layer), running.encoded.Bytes(sizes, layer));
    peak = std::max(peak, others + own);
    others += new_slots.Bytes(sizes, layer);
  }
  return std::max(peak, others);
}

}  // namespace

SlotSizes::SlotSizes(const Codec& codec, const KvShape& shape) {
  const CodecTraits& traits = codec.traits();
  const auto padded = [](int64_t halves) {
    return halves == 0 ? 0 : PagePool::SlotBytes(halves * 2);
  };
  if (!traits.lossless) {
    exact = padded(shape.block_tokens * RowElements(shape));
    sinks = padded(traits.sink_tokens * RowElements(shape));
  }
  if (traits.prefix_tokens > 0) {
    state = codec.StateBytes() * shape.kv_heads;
    const int64_t heads = shape.kv_heads + shape.query_heads;
    if (codec.SumFloats() > 0) stats = padded(shape.block_tokens * heads * shape.dk);
  }
  pages.assign(shape.layers, 0);
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      pages[layer] += PagePool::SlotBytes(codec.PageSize(layer, head).total());
    }
  }
}

int64_t FirstKeptBlock(const CodecTraits& traits, const VisibilityRule& rule, int block_tokens,
                       int64_t length, bool frozen) {
  const int64_t blocks = CeilDiv(length, block_tokens);
  if (traits.lossless) return blocks;
  // For one query, blocks are packed up to some block and exact from there on; and once packed, a block stays packed
  // for later queries. So the query at `length` decides, and the border is found by halving.
  int64_t low = 0, high = EncodedBlocks(traits, block_tokens, length, frozen);
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    const bool exact = BlockIsExact(rule, traits, block_tokens, length, middle * block_tokens,
                                    /*chunk_begin=*/length);
    (exact ? high : low) = exact ? middle : middle + 1;
  }
  return low;
}

LayerSlots SlotsAtRest(const Codec& codec, const ShardMap& map, int slot, int64_t length,
                       const VisibilityRule& rule) {
  const CodecTraits& traits = codec.traits();
  const int block = map.block_tokens();
  const int64_t blocks = CeilDiv(length, block);
  const bool frozen = Frozen(traits, length);
  LayerSlots slots;
  slots.pages = BlocksBefore(map, slot, EncodedBlocks(traits, block, length, frozen));
  slots.state = traits.prefix_tokens > 0 && frozen;
  if (traits.lossless) return slots;
  const int64_t kept = FirstKeptBlock(traits, rule, block, length, frozen);
  slots.exact = BlocksBefore(map, slot, blocks) - BlocksBefore(map, slot, kept);
  if (traits.prefix_tokens > 0 && codec.SumFloats() > 0 && kept == 0) {
    slots.stats = BlocksBefore(map, slot, std::min<int64_t>(blocks, traits.prefix_tokens / block));
  }
  slots.sinks = traits.sink_tokens > 0 && length > 0 && map.Slot(map.Shard(0)) == slot;
  return slots;
}

int64_t KvBytes(const Codec& codec, const KvShape& shape, const ShardMap& map, int slot,
                int64_t length, const VisibilityRule& rule) {
  const SlotSizes sizes(codec, shape);
  const LayerSlots slots = SlotsAtRest(codec, map, slot, length, rule);
  int64_t bytes = 0;
  for (int layer = 0; layer < shape.layers; ++layer) bytes += slots.Bytes(sizes, layer);
  return bytes;
}

int64_t KvPeakBytes(const Codec& codec, const KvShape& shape, const ShardMap& map, int slot,
                    int64_t length, int64_t chunk, const VisibilityRule& rule) {
  if (length <= 0) return 0;
  const SlotSizes sizes(codec, shape);
  const int64_t block = map.block_tokens();
  const int64_t first = std::max<int64_t>(0, length - std::max<int64_t>(chunk, 1));
  int64_t peak = 0;
  // A step may be shorter than `chunk`. What is held changes only where a block opens, is full or is about to be.
  for (int64_t before = first; before < length;) {
    peak = std::max(peak, StepPeak(codec, shape, sizes, map, slot, before, length, rule));
    const int64_t in_block = before % block;
    if (in_block == 0) {
      before += 1;
    } else if (in_block < block - 1) {
      before += block - 1 - in_block;
    } else {
      before += 1;
    }
  }
  return peak;
}

int64_t KvBytesF16(const KvShape& shape, int64_t tokens) {
  return tokens * shape.layers * RowElements(shape) * 2;
}

double BitsPerElement(const Codec& codec, const KvShape& shape) {
  int64_t bytes = 0;
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) bytes += codec.PageSize(layer, head).total();
  }
  const int64_t elements = shape.layers * RowElements(shape) * shape.block_tokens;
  return 8.0 * static_cast<double>(bytes) / static_cast<double>(elements);
}

}  // namespace kvring
