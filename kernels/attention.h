// SPDX-License-Identifier: Apache-2.0
// Attention of many query rows over the pages of one (layer, KV head), into a SoftmaxPartial. One code path for decode and
// prefill: a page is decoded once into a tile and used by every row that sees it, and row r's result depends on row r,
// the pages and the rule alone (distributed-attention spec 1, 2.4, 9).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/codec.h"
#include "kernels/packed_queries.h"
#include "kernels/softmax_partial.h"
#include "kernels/visibility.h"

namespace kvring {

// Where evictors that need attention scores collect them; null for everyone else.
class ScoreSink {
 public:
  virtual ~ScoreSink() = default;
  // Base-2 logits of one row over the `count` visible keys from position `begin` on.
  virtual void AddScores(int64_t row, int64_t begin, int64_t count, const float* logits) = 0;
};

struct AttendArgs {
  const Codec* codec = nullptr;
  int layer = 0, head = 0;  // KV head
  // Sequence state of (layer, head); null until frozen or when there is none.
  const float* state = nullptr;
  int block_tokens = 64;
  // Of this layer: exact rows of kPreRope codecs are rotated when read.
  const RopeTable* rope = nullptr;
  int dk = 0, dv = 0;
  std::span<const PageView> pages;     // ascending positions
  std::span<const int64_t> positions;  // [rows], never falling
  const float* raw_q = nullptr;        // [rows][dk] after RoPE, scaled by log2(e)/sqrt(dk)
  // [rows][dk] PrepareQuery(raw_q); null or equal to raw_q where the codec has no transform.
  const float* packed_q = nullptr;
  VisibilityRule rule;
  int64_t chunk_begin = 0;  // first position of this step's chunk (kExactChunk)
  ScoreSink* scores = nullptr;
  AttentionForm form;
  // Not kTile: PreparePacked of these rows, made once for all pages of a step; null: AttendPages makes its own.
  const PackedQueries* prepared = nullptr;
  // With `prepared`: the page that the next call by the same scratch begins with, for the same rows, and the one after it;
  // null: not known. The first is fetched, and may be begun, before this call ends. That call says so.
  const PageView* announced[2] = {};
  bool was_announced = false;
};

// The page that is read after `page` of args.pages, in this call or the next one; null: not known.
inline const PageView* PageAfter(const AttendArgs& args, const PageView& page) {
  const PageView* const begin = args.pages.data();
  const PageView* const end = begin + args.pages.size();
  if (&page == args.announced[0]) return args.announced[1];
  if (&page < begin || &page >= end) return nullptr;  // a view of its own, such as that of sinks
  return &page + 1 < end ? &page + 1 : args.announced[0];
}

// Rotation angles of one block's positions.
struct BlockAngles {
  RopeTable rope;  // a copy: tables are compared by value
  int64_t begin = -1;
  std::vector<float> cos_sin;  // [planes][2][block_tokens, rounded up to 16]
};

// Buffers of one thread, reused between calls. The angles are those of the blocks that were read exact last: the few
// open blocks of a sequence are read by every layer and head.
struct AttendScratch {
  std::vector<float> kt, v, p, rows, halves;
  std::vector<BlockAngles> angles;
  size_t oldest_angles = 0;
  PackedQueries queries;
  PackedScratch packed;
};

// partial (+)= attention over args.pages, pages in the given order. Rows that see no key of a page are not touched by it.
void AttendPages(const AttendArgs& args, AttendScratch& scratch, const SoftmaxPartial& partial);

// partial (+)= attention of rows [first, last) of `args` over the exact rows of one page: for codecs that read the rest of it
// themselves.
void AttendExactRows(const AttendArgs& args, const PageView& page, int64_t first, int64_t last,
                     AttendScratch& scratch, const SoftmaxPartial& partial);

// The plain form of the same in double (kernels/ref): defines correct. Tolerance of the fast form: docs/numerics.md.
void AttendPagesRef(const AttendArgs& args, const SoftmaxPartial& partial);

}  // namespace kvring
