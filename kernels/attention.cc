// SPDX-License-Identifier: Apache-2.0
// The walk over pages: which rows read a page exact, which packed, and the tile each of them needs.
#include "kernels/attention.h"

#include <algorithm>

#include "kernels/cpu/attend_tile.h"

namespace kvring {
namespace {

// Up to this many rows reading pages takes as long as what is done with them.
constexpr size_t kFewRows = 8;

bool ReadsExact(const AttendArgs& args, const PageView& page, int64_t position) {
  if (page.packed == nullptr) return true;
  if (page.exact_k == nullptr) return false;
  const CodecTraits& traits = args.codec->traits();
  if (traits.lossless) return false;
  return BlockIsExact(args.rule, traits, args.block_tokens, position, page.begin, args.chunk_begin);
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

// Lines of the packed page that is read next, asked for some at a time while this one is decoded: more at once than a core has
// buffers for misses would hold up what it does meanwhile.
class NextPacked {
 public:
  NextPacked(const AttendArgs& args, const PageView& page) {
    const PageView* const next = PageAfter(args, page);
    if (next == nullptr || next->packed == nullptr) return;
    at_ = next->packed;
    end_ = at_ + args.codec->PageSize(args.layer, args.head).total();
  }
  void Ask() {
    constexpr int kAtOnce = 24, kLine = 64;
    for (int i = 0; i < kAtOnce && at_ < end_; ++i, at_ += kLine) __builtin_prefetch(at_, 0, 2);
  }

 private:
  const uint8_t *at_ = nullptr, *end_ = nullptr;
};

void AttendDecoded(const AttendArgs& args, const PageView& page, int64_t first, int64_t last,
                   AttendScratch& scratch, const SoftmaxPartial& partial) {
  const float* const q = args.packed_q == nullptr ? args.raw_q : args.packed_q;
  AttendTileArgs tile = TileOf(args, page, q, first, last, partial);
  const int64_t block = args.block_tokens;
  float* const kt = TileRoom(scratch.kt, block * args.dk + kTilePad);
  float* const v = TileRoom(scratch.v, block * args.dv + kTilePad);
  NextPacked next(args, page);
  next.Ask();
  args.codec->DecodeKeys(args.layer, args.head, args.state, page, kt);
  next.Ask();
  args.codec->DecodeValues(args.layer, args.head, args.state, page, v);
  next.Ask();
  tile.kt = kt;
  tile.v = v;
  AttendTile(tile, scratch);
}

// Packed pages of a sequence lie apart, each on memory pages of its own. Where one is first touched the processor waits for a walk
// through the page tables, through two sets of them in a virtual machine; asked for together, these walks overlap.
void TouchMemory(const AttendArgs& args) {
  constexpr int64_t kMemoryPage = 4096;
  const int64_t size = args.codec->PageSize(args.layer, args.head).total();
  for (const PageView& page : args.pages) {
    if (page.packed == nullptr) continue;
    for (int64_t at = 0; at < size; at += kMemoryPage) __builtin_prefetch(page.packed + at, 0, 2);
    __builtin_prefetch(page.packed + size - 1, 0, 2);
  }
}

// Rows [first, last) over the first of `pages`, or over more of them where the codec reads them at once: how many.
int64_t AttendPackedOrDecoded(const AttendArgs& args, std::span<const PageView> pages,
                              int64_t first, int64_t last, AttendScratch& scratch,
                              const SoftmaxPartial& partial) {
  const int64_t read = args.codec->AttendPacked(args, pages, first, last, scratch, partial);
  if (read > 0) return read;
  AttendDecoded(args, pages.front(), first, last, scratch, partial);
  return 1;
}

// Where the pages from `begin` on end that rows at one position read packed alike; rows at several take page by page.
size_t RunEnd(const AttendArgs& args, size_t begin) {
  const auto reads_packed = [&args](const PageView& page) {
    const int64_t position = args.positions.front();
    return page.tokens > 0 && page.begin <= position && !ReadsExact(args, page, position);
  };
  size_t end = begin + 1;
  if (args.positions.empty() || args.positions.front() != args.positions.back() ||
      !reads_packed(args.pages[begin]))
    return end;
  while (end < args.pages.size() && reads_packed(args.pages[end])) ++end;
  return end;
}

// The first of `run`, or more of them: how many.
int64_t AttendSome(const AttendArgs& args, std::span<const PageView> run, AttendScratch& scratch,
                   const SoftmaxPartial& partial) {
  const PageView& page = run.front();
  if (page.tokens == 0) return 1;
  const int64_t rows = static_cast<int64_t>(args.positions.size());
  const auto* positions = args.positions.data();
  int64_t first = std::lower_bound(positions, positions + rows, page.begin) - positions;
  const PageView* const after = PageAfter(args, run.back());
  if (after != nullptr && after->exact_k != nullptr) FetchExactRows(args, *after);
  // Positions never fall, so rows that read the page alike are neighbours.
  while (first < rows) {
    const bool exact = ReadsExact(args, page, positions[first]);
    int64_t last = first + 1;
    while (last < rows && (positions[last] == positions[last - 1] ||
                           ReadsExact(args, page, positions[last]) == exact)) {
      ++last;
    }
    if (exact) {
      AttendExactRows(args, page, first, last, scratch, partial);
    } else {
      const int64_t read = AttendPackedOrDecoded(args, run, first, last, scratch, partial);
      if (run.size() > 1) return read;  // by all rows
    }
    first = last;
  }
  return 1;
}

}  // namespace

void AttendPages(const AttendArgs& all_args, AttendScratch& scratch,
                 const SoftmaxPartial& partial) {
  AttendArgs args = all_args;
  args.was_announced ? scratch.packed.GoOn() : scratch.packed.Forget();
  if (args.form.math != AttentionMath::kTile && args.prepared == nullptr &&
      args.codec->PreparePacked(args, scratch.queries)) {
    args.prepared = &scratch.queries;
  }
  if (args.positions.size() <= kFewRows && args.pages.size() > 1) TouchMemory(args);
  for (size_t at = 0, run_end = 0; at < args.pages.size();) {
    if (at >= run_end) run_end = RunEnd(args, at);
    at += static_cast<size_t>(
        AttendSome(args, args.pages.subspan(at, run_end - at), scratch, partial));
  }
  if (scratch.packed.turned) args.codec->FinishPacked(args, scratch, partial);
}

}  // namespace kvring
