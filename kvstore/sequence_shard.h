// SPDX-License-Identifier: Apache-2.0
// One rank's part of one sequence's KV cache: pages of the blocks that live on this rank, exact rows of what is not packed
// yet, sinks, and the sequence's codec state.
//
// Order of calls in a step, per layer: Append (rows of this rank's new tokens) -> [Freeze, when the step reaches
// prefix_tokens] -> EncodeReady -> Pages ... (attention) -> CloseCells. Positions come in ascending order; several calls
// of Append with parts of a step equal one with all, bit for bit, and any chunking gives the same pages (F16).
// One writer at a time; Pages and State may be read by many threads between writes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/codec.h"
#include "kernels/visibility.h"
#include "kvstore/page_pool.h"
#include "runtime/base/shard_map.h"
#include "runtime/base/status.h"

namespace kvring {

struct SequenceShardOptions {
  std::shared_ptr<const Codec> codec;
  KvShape shape;
  std::vector<const RopeTable*> rope;  // [layers], outlive the shard
  VisibilityRule rule;
  PagePool* pool = nullptr;  // outlives the shard
  int rank = 0;
};

// Rows of one layer, of tokens whose home is this rank.
struct AppendRows {
  std::span<const int64_t> positions;  // ascending
  const float* k = nullptr;            // [n][kv_heads][dk] before RoPE
  const float* v = nullptr;            // [n][kv_heads][dv]
  const float* q =
      nullptr;  // [n][query_heads][dk] before RoPE; needed while statistics are gathered, else may be null
};

// What the cache could not represent, counted (never wrapped).
struct KvCounters {
  int64_t saturated = 0;  // codec values out of range
  int64_t overflow = 0;   // outliers that found no slot; also part of `saturated`
  int64_t clamped = 0;    // rows' numbers beyond fp16
};

class SequenceShard {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceShard>> Create(const SequenceShardOptions& options,
                                                               const ShardMap& map);
  virtual ~SequenceShard() = default;

  // NaN or infinity is refused with layer, head and token before anything is stored (F05).
  virtual absl::Status Append(int layer, const AppendRows& rows) = 0;

  // Statistics of the prefix. A rank holds sums of the blocks that are its own; BlockSums gives [kv_heads][SumFloats()]
  // of one block (zeros when foreign or not seen). Freeze takes the sums of all prefix blocks in block order:
  // [prefix_blocks][kv_heads][SumFloats()].
  virtual int64_t prefix_blocks() const = 0;  // 0: the codec keeps no sequence state
  virtual bool frozen(int layer) const = 0;
  virtual const float* BlockSums(int layer, int64_t block) const = 0;
  virtual absl::Status Freeze(int layer, const float* sums) = 0;

  // Encodes every token whose parameters exist, given that the sequence is `length` tokens long now.
  virtual absl::Status EncodeReady(int layer, int64_t length) = 0;
  // Drops exact rows that no query at or after `length` reads, by the visibility rule.
  virtual void CloseCells(int layer, int64_t length) = 0;

  virtual void Pages(int layer, int head, int virtual_shard,
                     std::vector<PageView>& pages) const = 0;
  virtual const float* State(int layer, int head) const = 0;  // null until frozen

  virtual int64_t length()
      const = 0;  // tokens of the whole sequence: 1 + last position seen, or what SetLength said
  virtual void SetLength(
      int64_t length) = 0;  // every rank knows L, also one that holds nothing of it
  virtual int64_t local_tokens() const = 0;

  // A copy that shares sealed pages and owns what is open, cut to `length` tokens. FAILED_PRECONDITION when the cut falls where
  // exact rows are gone that the shorter sequence would still read (the message says the nearest lengths that work).
  virtual absl::StatusOr<std::unique_ptr<SequenceShard>> Fork(int64_t length) const = 0;
  virtual absl::Status Truncate(int64_t length) = 0;

  virtual int64_t bytes()
      const = 0;  // slots held by this shard, shared ones counted in full, plus sequence state
  virtual int64_t page_bytes() const = 0;  // of bytes(): the pages
  virtual const KvCounters& counters() const = 0;
  virtual const std::vector<KvCounters>& layer_counters() const = 0;  // [layers]: where drift shows
};

// Bytes that a sequence of `length` tokens takes on `slot`, exactly as the shard allocates: pages, exact rows that the rule
// keeps at that length, sinks, sequence state, padding. One function for allocator, planner and admission.
// For codecs with growing pages (traits.growing_page) this and all functions below are estimates: such a page is taken at
// PageSize, which holds the entries that the calibration expects, while the shard holds what its tokens need.
int64_t KvBytes(const Codec& codec, const KvShape& shape, const ShardMap& map, int slot,
                int64_t length, const VisibilityRule& rule);

// The largest KvBytes moment of a step that appends up to `chunk` tokens to reach `length`: one layer's rows of the
// whole chunk are exact while its attention runs.
int64_t KvPeakBytes(const Codec& codec, const KvShape& shape, const ShardMap& map, int slot,
                    int64_t length, int64_t chunk, const VisibilityRule& rule);

// The same bytes for a plain fp16 cache without padding: what "against fp16" means.
int64_t KvBytesF16(const KvShape& shape, int64_t tokens);

// Allocated bits per element of a full page (design: 8 x page bytes / elements).
double BitsPerElement(const Codec& codec, const KvShape& shape);

}  // namespace kvring
