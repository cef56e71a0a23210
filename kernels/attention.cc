// SPDX-License-Identifier: Apache-2.0
// The walk over pages: which rows read a page exact, which packed, and the tile each of them needs.
#include "kernels/attention.h"

#include <algorithm>

#include "kernels/convert.h"
#include "kernels/cpu/attend_tile.h"

namespace kvring {
namespace {

bool ReadsExact(const AttendArgs& args, const PageView& page, int64_t position) {
  const CodecTraits& traits = args.codec->traits();
  if (page.packed == nullptr) return true;
  if (traits.lossless || page.exact_k == nullptr) return false;
  return BlockIsExact(args.rule, traits, args.block_tokens, position, page.begin, args.chunk_begin);
}

// Blocks whose angles a thread keeps: two cells of the default size.
constexpr size_t kKeptAngles = 16;

bool SameRope(const RopeTable& a, const RopeTable& b) {
  return a.pairing == b.pairing && a.head_dim == b.head_dim &&
         a.attention_scale == b.attention_scale && a.inv_freq == b.inv_freq;
}

const float* AnglesOf(const AttendArgs& args, int64_t begin, AttendScratch& scratch) {
  const size_t step = static_cast<size_t>(2 * args.rope->planes());
  const size_t floats = step * static_cast<size_t>(args.block_tokens);
  for (const BlockAngles& kept : scratch.angles) {
    if (kept.begin == begin && kept.cos_sin.size() == floats && SameRope(kept.rope, *args.rope)) {
      return kept.cos_sin.data();
    }
  }
  if (scratch.angles.size() < kKeptAngles) scratch.angles.resize(kKeptAngles);
  BlockAngles& made = scratch.angles[scratch.oldest_angles++ % kKeptAngles];
  made.rope = *args.rope;
  made.begin = begin;
  made.cos_sin.resize(floats);
  for (int t = 0; t < args.block_tokens; ++t)
    RopeAngles(*args.rope, begin + t, made.cos_sin.data() + t * step);
  return made.cos_sin.data();
}

void RotateKeys(const AttendArgs& args, const PageView& page, AttendScratch& scratch) {
  const float* angles = AnglesOf(args, page.begin, scratch);
  for (int64_t t = 0; t < page.tokens; ++t) {
    RopeRotate(*args.rope, angles + t * 2 * args.rope->planes(), scratch.rows.data() + t * args.dk);
  }
}

// Rows of a page that is read next: they lie apart, so that no prefetcher of the processor's own follows.
void FetchExactRows(const AttendArgs& args, const PageView& page) {
  constexpr int kLine = 64 / static_cast<int>(sizeof(Half));
  for (int64_t t = 0; t < page.tokens; ++t) {
    const Half *k = page.exact_k + t * page.exact_k_stride,
               *v = page.exact_v + t * page.exact_v_stride;
    for (int i = 0; i < args.dk; i += kLine) __builtin_prefetch(k + i);
    for (int i = 0; i < args.dv; i += kLine) __builtin_prefetch(v + i);
  }
}

// Exact rows as a tile: keys after RoPE as columns, values as they are; slots from page.tokens on are zeros.
void ExactTile(const AttendArgs& args, const PageView& page, AttendScratch& scratch) {
  const int64_t block = args.block_tokens;
  std::vector<float>& rows = scratch.rows;
  rows.resize(static_cast<size_t>(block * args.dk));
  for (int64_t t = 0; t < page.tokens; ++t) {
    HalfToFloat(page.exact_k + t * page.exact_k_stride, args.dk, rows.data() + t * args.dk);
    HalfToFloat(page.exact_v + t * page.exact_v_stride, args.dv, scratch.v.data() + t * args.dv);
  }
  std::fill(rows.begin() + page.tokens * args.dk, rows.end(), 0.0f);
  std::fill_n(scratch.v.data() + page.tokens * args.dv, (block - page.tokens) * args.dv, 0.0f);
  if (args.codec->traits().key_domain == KeyDomain::kPreRope) RotateKeys(args, page, scratch);
  Transpose(rows.data(), block, args.dk, scratch.kt.data());
}

void PackedTile(const AttendArgs& args, const PageView& page, AttendScratch& scratch) {
  args.codec->DecodeKeys(args.layer, args.head, args.state, page, scratch.kt.data());
  args.codec->DecodeValues(args.layer, args.head, args.state, page, scratch.v.data());
}

void AttendRows(const AttendArgs& args, const PageView& page, bool exact, int64_t first,
                int64_t last, AttendScratch& scratch, const SoftmaxPartial& partial) {
  AttendTileArgs tile;
  tile.q = (exact || args.packed_q == nullptr ? args.raw_q : args.packed_q) + first * args.dk;
  tile.positions = args.positions.data() + first;
  tile.rows = last - first;
  tile.first_row = first;
  tile.kt = scratch.kt.data();
  tile.v = scratch.v.data();
  tile.block = args.block_tokens;
  tile.dk = args.dk;
  tile.dv = args.dv;
  tile.begin = page.begin;
  tile.tokens = page.tokens;
  tile.scores = args.scores;
  tile.partial = partial.Slice(first, last - first);
  AttendTile(tile, scratch);
}

void AttendPage(const AttendArgs& args, const PageView& page, AttendScratch& scratch,
                const SoftmaxPartial& partial) {
  const int64_t rows = static_cast<int64_t>(args.positions.size());
  const auto* positions = args.positions.data();
  int64_t first = std::lower_bound(positions, positions + rows, page.begin) - positions;
  const PageView* const after = PageAfter(args, page);
  if (after != nullptr && after->exact_k != nullptr) FetchExactRows(args, *after);
  // Positions never fall, so rows that read the page alike are neighbours.
  while (first < rows) {
    const bool exact = ReadsExact(args, page, positions[first]);
    int64_t last = first + 1;
    while (last < rows && (positions[last] == positions[last - 1] ||
                           ReadsExact(args, page, positions[last]) == exact)) {
      ++last;
    }
    if (exact || !args.codec->AttendPacked(args, page, first, last, scratch, partial)) {
      exact ? ExactTile(args, page, scratch) : PackedTile(args, page, scratch);
      AttendRows(args, page, exact, first, last, scratch, partial);
    }
    first = last;
  }
}

}  // namespace

void AttendExactRows(const AttendArgs& args, const PageView& page, int64_t first, int64_t last,
                     AttendScratch& scratch, const SoftmaxPartial& partial) {
  ExactTile(args, page, scratch);
  AttendRows(args, page, true, first, last, scratch, partial);
}

void AttendPages(const AttendArgs& all_args, AttendScratch& scratch,
                 const SoftmaxPartial& partial) {
  AttendArgs args = all_args;
  args.was_announced ? scratch.packed.GoOn() : scratch.packed.Forget();
  if (args.form.math != AttentionMath::kTile && args.prepared == nullptr &&
      args.codec->PreparePacked(args, scratch.queries)) {
    args.prepared = &scratch.queries;
  }
  scratch.kt.resize(static_cast<size_t>(args.block_tokens) * args.dk + kTilePad);
  scratch.v.resize(static_cast<size_t>(args.block_tokens) * args.dv + kTilePad);
  for (const PageView& page : args.pages) {
    if (page.tokens > 0) AttendPage(args, page, scratch, partial);
  }
  if (scratch.packed.turned) args.codec->FinishPacked(args, scratch, partial);
}

}  // namespace kvring
