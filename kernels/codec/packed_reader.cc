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
                  const BiasBasis* basis, const float* turn) {
  PackedPage page;
  page.k_words = view.packed + reading.places.k_words;
  page.k_scales = view.packed + reading.places.k_scales;
  page.v_words = view.packed + reading.places.v_words;
  page.v_scales = view.packed + reading.places.v_scales;
  page.basis = basis;
  page.turn = turn;
  page.begin = view.begin;
  page.first = std::min(view.sinks, view.tokens);
  page.tokens = view.tokens;
  // Two pages on: memory answers later than a page takes.
  const PageView* const after = NextPage(args, view);
  const PageView* const soon = after == nullptr ? nullptr : NextPage(args, *after);
  if (soon != nullptr) page.next = soon->packed - view.packed;
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

namespace {

// Some pages of a run and the one after them, as the kernels read them.
class Batch {
 public:
  static constexpr int64_t kPages = 8;

  Batch(const PackedReading& reading, const AttendArgs& args)
      : reading_(reading), args_(args), biased_(args.prepared->planes > 0) {
    if (!biased_) return;
    basis_ = {reading.turns->functions(), reading.turns->folded(), reading.turns->offsets(),
              reading.turns->fold()};
  }

  // The first of `views`; none when its angles are beyond the tables. looks_ahead: with what is read after them. has_turn: the first
  // one's angles are not needed.
  PackedRun Fill(std::span<const PageView> views, bool looks_ahead, bool has_turn) {
    int64_t count = std::min<int64_t>(kPages, std::ssize(views));
    // Sinks of a page are added before it, so it begins a run.
    for (int64_t i = 1; i < count; ++i)
      if (views[i].sinks > 0) count = i;
    const PageView* const after = looks_ahead ? NextPage(args_, views[count - 1]) : nullptr;
    const int64_t turned = Turn(views.first(count), after, has_turn);
    count = std::min(count, turned);
    const bool announced = after != nullptr && turned > count;
    for (int64_t i = 0; i < count; ++i) pages_[i] = PageAt(views[i], i);
    if (announced) pages_[count] = PageAt(*after, count);
    return {pages_, count, announced ? pages_ + count : nullptr};
  }

 private:
  PackedPage PageAt(const PageView& view, int64_t i) const {
    return PageOf(reading_, args_, view, &basis_, turn_ + i * 2 * reading_.turns->stride());
  }

  // How many of the views and of the one after them have angles.
  int64_t Turn(std::span<const PageView> views, const PageView* after, bool has_turn) {
    int64_t begins[kPages + 1], count = 0;
    for (const PageView& view : views) begins[count++] = view.begin;
    if (after != nullptr) begins[count++] = after->begin;
    if (!biased_) return count;
    const int64_t known = has_turn ? 1 : 0, floats = known * 2 * reading_.turns->stride();
    return known + reading_.turns->Turn({begins + known, static_cast<size_t>(count - known)},
                                        turn_ + floats);
  }

  const PackedReading& reading_;
  const AttendArgs& args_;
  bool biased_;
  BiasBasis basis_;
  PackedPage pages_[kPages + 1];
  alignas(64) float turn_[(kPages + 1) * kPackedMaxDim];
};

}  // namespace

int64_t AttendPackedViews(const PackedReading& reading, const AttendArgs& args,
                          std::span<const PageView> views, int64_t first, int64_t last,
                          AttendScratch& scratch, const SoftmaxPartial& partial) {
  PackedRows rows;
  rows.queries = args.prepared;
  rows.first = first;
  rows.rows = last - first;
  rows.positions = args.positions.data() + first;
  rows.scores = args.scores;
  rows.partial = partial.Slice(first, last - first);
  const bool looks_ahead = rows.rows <= kFusedRows;
  Batch batch(reading, args);
  int64_t read = 0;
  while (read < std::ssize(views)) {
    const PageView& view = views[read];
    const uint8_t* const words = view.packed + reading.places.k_words;
    const PackedRun run = batch.Fill(views.subspan(read), looks_ahead,
                                     scratch.packed.Holds(words, first, last - first));
    if (run.count == 0) break;
    if (view.sinks > 0) AttendSinks(args, view, first, last, scratch, partial);
    if (!args.prepared->value_basis.empty())
      GiveTurned(args, first, scratch.packed, &rows.o, &rows.o_m);
    AttendPackedPages(reading.form, run, rows, scratch.packed);
    read += run.count;
  }
  return read;
}

}  // namespace kvring
