// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/packed_reader.h"

#include <algorithm>

namespace kvring {
namespace {

// The page after this one, when it has codes.
const PageView* NextPage(const AttendArgs& args, const PageView& page) {
  const PageView* const next = PageAfter(args, page);
  return next == nullptr || next->packed == nullptr ? nullptr : next;
}

PackedPage PageOf(const PackedReading& reading, const AttendArgs& args, const PageView& view,
                  const float* turn) {
  PackedPage page;
  page.k_words = view.packed + reading.places.k_words;
  page.k_scales = view.packed + reading.places.k_scales;
  page.v_words = view.packed + reading.places.v_words;
  page.v_scales = view.packed + reading.places.v_scales;
  page.cosines = reading.turns->cosines();
  page.turn = turn;
  page.begin = view.begin;
  page.first = std::min(view.sinks, view.tokens);
  page.tokens = view.tokens;
  if (const PageView* after = NextPage(args, view)) page.next = after->packed - view.packed;
  return page;
}

// Adds the sinks of a page alone, as exact rows, to rows [first, last).
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

}  // namespace

void GiveTurned(const AttendArgs& args, int64_t first, PackedScratch& scratch, float** o,
                float** o_m) {
  if (!scratch.turned) {
    scratch.turned = true;
    scratch.turned_o.assign(args.positions.size() * static_cast<size_t>(args.dv), 0.0f);
    scratch.turned_m.assign(args.positions.size(), kNoLogit);
  }
  *o = scratch.turned_o.data() + first * args.dv;
  *o_m = scratch.turned_m.data() + first;
}

bool AttendPackedView(const PackedReading& reading, const AttendArgs& args, const PageView& view,
                      int64_t first, int64_t last, AttendScratch& scratch,
                      const SoftmaxPartial& partial) {
  alignas(64) float turn[2][2 * kPackedMaxDim];
  const bool biased = args.prepared->planes > 0;
  const uint8_t* const words = view.packed + reading.places.k_words;
  if (!scratch.packed.Holds(words, first, last - first) && biased &&
      !reading.turns->Turn(view.begin, turn[0]))
    return false;
  if (view.sinks > 0) AttendSinks(args, view, first, last, scratch, partial);
  PackedRows rows;
  rows.queries = args.prepared;
  rows.first = first;
  rows.rows = last - first;
  rows.positions = args.positions.data() + first;
  rows.scores = args.scores;
  rows.partial = partial.Slice(first, last - first);
  if (!args.prepared->value_basis.empty())
    GiveTurned(args, first, scratch.packed, &rows.o, &rows.o_m);
  const PageView* next = rows.rows <= kFusedRows ? NextPage(args, view) : nullptr;
  if (next != nullptr && biased && !reading.turns->Turn(next->begin, turn[1])) next = nullptr;
  PackedPage after;
  if (next != nullptr) after = PageOf(reading, args, *next, turn[1]);
  AttendPackedPage(reading.form, PageOf(reading, args, view, turn[0]),
                   next == nullptr ? nullptr : &after, rows, scratch.packed);
  return true;
}

}  // namespace kvring
