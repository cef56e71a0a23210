// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/rot_reader.h"

#include <algorithm>

#include "kernels/codec/lloyd_max.h"
#include "kernels/ref/codec_ref.h"

namespace kvring {
namespace {

// Rows [first, last) over the sinks of a page alone, as exact rows.
void AttendSinks(const AttendArgs& args, const PageView& page, int64_t first, int64_t last,
                 AttendScratch& scratch, const SoftmaxPartial& partial) {
  PageView sinks = page;
  sinks.packed = nullptr;
  sinks.exact_k = page.sink_k;
  sinks.exact_v = page.sink_v;
  sinks.exact_k_stride = page.sink_k_stride;
  sinks.exact_v_stride = page.sink_v_stride;
  sinks.tokens = std::min(page.sinks, page.tokens);
  AttendExactRows(args, sinks, first, last, scratch, partial);
}

// The page after this one in the same call, when it has codes.
const PageView* NextPage(const AttendArgs& args, const PageView& page) {
  const PageView* const next = &page + 1;
  const PageView* const begin = args.pages.data();
  if (&page < begin || next >= begin + args.pages.size() || next->packed == nullptr) return nullptr;
  return next;
}

}  // namespace

RotReader::RotReader(const RotReaderOptions& options)
    : options_(options),
      fits_(PackedFormFits(options.form) && options.block_tokens == kPackedBlock &&
            !options.grouped) {
  if (fits_) turns_ = MakePageTurns(options_.rope, options_.block_tokens);
}

bool RotReader::Prepare(const AttendArgs& args, const float* mean, PackedQueries& queries) const {
  if (!fits_ || args.packed_q == nullptr) return false;
  const int64_t rows = static_cast<int64_t>(args.positions.size());
  QuantizeQueries(options_.form, args.packed_q, rows, queries);
  queries.planes = queries.stride = 0;
  if (mean != nullptr) TurnQueries(*options_.rope[args.layer], mean, args.raw_q, rows, queries);
  return true;
}

void RotReader::AttendPlain(const AttendArgs& args, const PageView& page, int64_t first,
                            int64_t last, const float* mean, const SoftmaxPartial& partial) const {
  RotPageRef form;
  form.bits = options_.form.bits;
  form.dk = options_.form.dk;
  form.dv = options_.form.dv;
  form.rope = options_.rope[args.layer];
  form.mean = mean;
  AttendArgs rows = args;
  rows.pages = {&page, 1};
  rows.positions = args.positions.subspan(first, last - first);
  rows.raw_q += first * args.dk;
  rows.packed_q += first * args.dk;
  AttendPackedRef(form, *turns_[args.layer], rows, partial.Slice(first, last - first));
}

PackedPage RotReader::Page(const AttendArgs& args, const PageView& view, const float* turn) const {
  PackedPage page;
  page.k_words = view.packed;
  page.k_scales = view.packed + options_.k_word_bytes;
  page.v_words = view.packed + options_.k_bytes;
  page.v_scales = page.v_words + options_.v_word_bytes;
  page.cosines = turns_[args.layer]->cosines();
  page.turn = turn;
  page.begin = view.begin;
  page.first = std::min(view.sinks, view.tokens);
  page.tokens = view.tokens;
  if (const PageView* after = NextPage(args, view)) page.next = after->packed - view.packed;
  return page;
}

bool RotReader::Attend(const AttendArgs& args, const PageView& view, int64_t first, int64_t last,
                       const float* mean, AttendScratch& scratch,
                       const SoftmaxPartial& partial) const {
  if (args.prepared == nullptr) return false;
  alignas(64) float turn[2][2 * kMaxCodeRows];
  const PageTurns& turns = *turns_[args.layer];
  const bool biased = args.prepared->planes > 0;
  if (!scratch.packed.Holds(view.packed, first, last - first) && biased &&
      !turns.Turn(view.begin, turn[0]))
    return false;
  if (args.form.math == AttentionMath::kPlainInt8) {
    AttendPlain(args, view, first, last, mean, partial);
    return true;
  }
  if (view.sinks > 0) AttendSinks(args, view, first, last, scratch, partial);
  PackedRows rows;
  rows.queries = args.prepared;
  rows.first = first;
  rows.rows = last - first;
  rows.positions = args.positions.data() + first;
  rows.scores = args.scores;
  rows.partial = partial.Slice(first, last - first);
  const PageView* next = rows.rows <= kFusedRows ? NextPage(args, view) : nullptr;
  if (next != nullptr && biased && !turns.Turn(next->begin, turn[1])) next = nullptr;
  PackedPage after;
  if (next != nullptr) after = Page(args, *next, turn[1]);
  AttendPackedPage(options_.form, Page(args, view, turn[0]), next == nullptr ? nullptr : &after,
                   rows, scratch.packed);
  return true;
}

}  // namespace kvring
