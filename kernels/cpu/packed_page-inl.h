// SPDX-License-Identifier: Apache-2.0
// The steps of a page: bias, scores, weights, values, each for a few rows at a time so that what they pass on stays in
// the first-level cache. Online softmax in base 2 as in attend_tile.cc. Included once per Highway target.
//
// Codes says how codes meet queries and weights:
//   terms(), TermScale(term)                   integer sums of a key, and the scale of each
//   groups(), kMaxGroups                       kinds of weights of a value
//   kOrder                                     of weights, as StoreInOrder takes it (0: the form's bits)
//   KeyStep(queries, row, term)                what a unit of a sum stands for, but for the key's scale
//   Unpack(page)                               levels of a page, before rows that are not fused
//   Keys(page, queries, row, count, out)       [count][terms][64] sums of rows [row, row + count)
//   Values(page, count)                        room.weights into room.sums
//   AddValues(page, count, step, o)            o [count][dv] += step[row] times these sums, at once; not where kSteps
//   kSteps, value_step                         whether coefficients of values have units of their own, and those
#if defined(KVRING_CPU_PACKED_PAGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRING_CPU_PACKED_PAGE_INL_H_
#undef KVRING_CPU_PACKED_PAGE_INL_H_
#else
#define KVRING_CPU_PACKED_PAGE_INL_H_
#endif

#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/bias_turn-inl.h"
#include "kernels/cpu/packed_registers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

// Rows on their way through a run of pages: what of a page they share, and what stays the same between pages.
template <class Codes>
struct PageStep {
  using RowSums = LaneSums<Codes::kMaxGroups>;
  PageStep(const PackedForm& form, const PackedRows& rows, const PackedRoom& room)
      : form(form),
        rows(rows),
        room(room),
        fused(KVRING_VNNI && rows.rows <= kFusedRows),
        codes(form, room, *rows.queries, fused) {}

  // to: the set of scores that is this page's.
  HWY_INLINE void Enter(const PackedPage& of, int to) {
    page = &of;
    turn = to;
    for (int g = 0; g <= Codes::TermScale(codes.terms() - 1); ++g)
      ScaleFloats(page->k_scales + g * kPackedBlock, k_scale[g]);
    for (int g = 0; g < codes.groups(); ++g)
      ScaleFloats(page->v_scales + g * kPackedBlock, v_scale[g]);
    is_plain = rows.scores == nullptr && page->first == 0 && page->tokens == kPackedBlock &&
               rows.positions[0] >= page->begin + kPackedBlock - 1;
  }

  // x = logits of row r (of the group), of all slots.
  HWY_INLINE void AllLogits(int64_t r, F32V* x) const {
    const F32 d;
    const PackedQueries& q = *rows.queries;
    const int64_t row = rows.first + group_first + r;
    Bias(r, row, x);
    const int32_t* sums = room.scores[turn] + r * codes.terms() * kPackedBlock;
    for (int t = 0; t < codes.terms(); ++t, sums += kPackedBlock) {
      const F32V step = hn::Set(d, codes.KeyStep(q, row, t));
      const F32V* const scale = k_scale[Codes::TermScale(t)];
      for (int i = 0; i < kParts; ++i) {
        const F32V sum = hn::ConvertTo(d, hn::LoadU(I32(), sums + PartAt(i)));
        x[i] = hn::MulAdd(sum, hn::Mul(scale[i], step), x[i]);
      }
    }
  }

  // The same, where slots that the row does not see are -inf.
  HWY_INLINE void Logits(int64_t r, int end, F32V* x) const {
    const F32 d;
    AllLogits(r, x);
    if (rows.scores != nullptr) {
      const int64_t row = rows.first + group_first + r;
      float* const s = LogitsAt(r);
      for (int i = 0; i < kParts; ++i) hn::StoreU(x[i], d, s + PartAt(i));
      rows.scores->AddScores(row, page->begin + page->first, end - page->first, s + page->first);
    }
    if (page->first > 0 || end < kPackedBlock) Hide(end, x);
  }

  // Slots outside [page->first, end).
  void Hide(int end, F32V* x) const {
    const F32 d;
    const F32V low = hn::Set(d, static_cast<float>(page->first));
    const F32V high = hn::Set(d, static_cast<float>(end));
    const F32V never = hn::Set(d, kNoLogit);
    for (int i = 0; i < kParts; ++i) {
      const F32V slot = hn::Iota(d, static_cast<float>(PartAt(i)));
      x[i] = hn::IfThenElse(hn::And(hn::Ge(slot, low), hn::Lt(slot, high)), x[i], never);
    }
  }

  // b = the bias of each slot: even and odd parts about the page's middle, their sum after it and their difference before it.
  HWY_INLINE void Bias(int64_t r, int64_t row, F32V* b) const {
    const F32 d;
    const PackedQueries& q = *rows.queries;
    if (q.planes == 0) {
      for (int i = 0; i < kParts; ++i) b[i] = hn::Zero(d);
      return;
    }
    const F32V step = hn::Set(d, q.z_scale[row]), constant = hn::Set(d, q.constant[row]);
    const int32_t *even = room.bias[turn] + r * kPackedBlock, *odd = even + kHalf;
    for (int i = 0; i < kParts / 2; ++i) {
      const I32V e = hn::LoadU(I32(), even + PartAt(i)), o = hn::LoadU(I32(), odd + PartAt(i));
      b[kParts / 2 + i] = hn::MulAdd(hn::ConvertTo(d, hn::Add(e, o)), step, constant);
      b[kParts / 2 - 1 - i] =
          hn::Reverse(d, hn::MulAdd(hn::ConvertTo(d, hn::Sub(e, o)), step, constant));
    }
  }

  // What each of R rows' sums are relative to, for these logits, is in rows.partial.m then: a page's largest only where it passes
  // the old one by more than the slack, so that most pages scale no sums and wait for no maximum over lanes.
  template <int R>
  HWY_INLINE void MoveReferences(int64_t first, const F32V (&x)[R][kParts]) {
    const F32 d;
    const float* const m = rows.partial.m + group_first + first;
    F32V top[R];
    hn::Mask<F32> passes = hn::FirstN(d, 0);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      top[r] = x[r][0];
      for (int i = 1; i < kParts; ++i) top[r] = hn::Max(top[r], x[r][i]);
      passes = hn::Or(passes, hn::Gt(top[r], hn::Set(d, m[r] + kPackedSlack)));
    }
    if (HWY_LIKELY(hn::AllFalse(d, passes) && rows.o == nullptr)) return;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      if (!hn::AllFalse(d, hn::Gt(top[r], hn::Set(d, m[r] + kPackedSlack))))
        Move(first + r, hn::GetLane(hn::MaxOfLanes(d, top[r])));
      if (rows.o != nullptr && rows.o_m[group_first + first + r] != m[r]) MoveTurned(first + r);
    }
  }

  static void Scale(float alpha, int64_t n, float* o) {
    const F32 d;
    for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(d)))
      hn::StoreU(hn::Mul(hn::Set(d, alpha), hn::LoadU(d, o + i)), d, o + i);
  }

  // exp2 by this target's instructions: in plain code a fused multiply-add may be a call.
  static float Factor(float old_m, float new_m) {
    const F32 d;
    return hn::GetLane(Exp2Vec(d, hn::Set(d, old_m - new_m)));
  }

  HWY_NOINLINE void Move(int64_t r, float new_m) {
    const int64_t row = group_first + r;
    const float alpha = Factor(rows.partial.m[row], new_m);
    rows.partial.m[row] = new_m;
    if (rows.partial.l[row] == 0.0f) return;  // the sums are zeros
    rows.partial.l[row] *= alpha;
    Scale(alpha, form.dv, rows.partial.o + row * form.dv);
  }

  // Sums of values that are kept apart follow.
  HWY_NOINLINE void MoveTurned(int64_t r) {
    const int64_t row = group_first + r;
    Scale(Factor(rows.o_m[row], rows.partial.m[row]), form.dv, rows.o + row * form.dv);
    rows.o_m[row] = rows.partial.m[row];
  }

  // Logits of R rows from `first` on to weights p_n s_n of every group; sums of p and the largest weights by lanes.
  template <int R>
  HWY_INLINE void Weights(int64_t first, F32V (&x)[R][kParts], RowSums& of, int64_t place) {
    const F32 d;
    MoveReferences<R>(first, x);
    const float* const m = rows.partial.m + group_first + first;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const F32V shift = hn::Set(d, m[r]);
#pragma GCC unroll 16
      for (int i = 0; i < kParts; ++i) x[r][i] = hn::Sub(x[r][i], shift);
    }
    Exp2Each<R * kParts>(x[0]);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      float* const s = LogitsAt(first + r);
      F32V* const sum = of.p[place + r];
#pragma GCC unroll 16
      for (int i = 0; i < kParts; ++i) {
        const F32V p = x[r][i];
        sum[i % kSumRegisters] = i < kSumRegisters ? p : hn::Add(sum[i % kSumRegisters], p);
        for (int g = 0; g < codes.groups(); ++g) {
          const F32V weight = hn::Mul(p, v_scale[g][i]);
          hn::StoreU(weight, d, s + g * kPackedBlock + PartAt(i));
          F32V& most = of.most[g][place + r];
          most = i == 0 ? weight : hn::Max(most, weight);
        }
      }
    }
  }

  template <int R>
  HWY_INLINE void PlainWeights(int64_t first, RowSums& of) {
    F32V x[R][kParts];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) AllLogits(first + r, x[r]);
    Weights<R>(first, x, of, 0);
  }

  HWY_INLINE void WeightsOfRow(int64_t r, RowSums& of, int64_t place) {
    F32V x[1][kParts];
    is_plain ? AllLogits(r, x[0]) : Logits(r, ends[r], x[0]);
    Weights<1>(r, x, of, place);
  }

  // Rows [first, first + count) of a group of at most kSumRows.
  HWY_INLINE void WeightsOf(int64_t first, int64_t count, RowSums& of) {
    if constexpr (kParts <= 4) {  // as many registers as there are
      if (is_plain && count == 4) return PlainWeights<4>(first, of);
      if (is_plain && count == 3) return PlainWeights<3>(first, of);
      if (is_plain && count == 2) return PlainWeights<2>(first, of);
    }
    for (int64_t i = 0; i < count; ++i)
      Sees(first + i) ? WeightsOfRow(first + i, of, i) : of.Clear(i, codes.groups());
  }

  // Weights to bytes, in steps that `inverse` is one over.
  HWY_INLINE void Round(const float* s, float inverse_step, uint8_t* to) const {
    const F32 d;
    [[maybe_unused]] const hn::Rebind<uint8_t, I32> d8;
    const int order = Codes::kOrder != 0 ? Codes::kOrder : form.bits;
    const F32V factor = hn::Set(d, inverse_step);
    I32V level[kParts];
    for (int i = 0; i < kParts; ++i)
      level[i] = ToNearest(hn::Mul(hn::LoadU(d, s + PartAt(i)), factor));
#if KVRING_VNNI
    const __m512i low = _mm512_packs_epi32(level[0].raw, level[1].raw);
    const __m512i high = _mm512_packs_epi32(level[2].raw, level[3].raw);
    const __m512i bytes = _mm512_packus_epi16(low, high);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi8(_mm512_load_si512(PackedOrder(order)), bytes));
#else
    for (int i = 0; i < kParts; ++i) hn::StoreU(hn::DemoteTo(d8, level[i]), d8, to + PartAt(i));
    StoreInOrder(order, to, to, kPackedBlock);
#endif
  }

  float* LogitsAt(int64_t r) const { return room.logits + r * codes.groups() * kPackedBlock; }

  void Begin(int64_t count) {
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = group_first + r;
      if (!is_plain) {
        const int64_t seen = rows.positions[row] - page->begin + 1;
        ends[r] = static_cast<int>(std::min<int64_t>(page->tokens, seen));
      }
      if (!Sees(r) || rows.partial.l[row] != 0.0f) continue;
      rows.partial.m[row] = kNoLogit;
      std::fill_n(rows.partial.o + row * form.dv, form.dv, 0.0f);
    }
  }

  // Four rows at a time: their sums over lanes, and what their bytes are steps of, are formed together.
  void AllWeights(int64_t count) {
    for (int64_t first = 0; first < count; first += kSumRows) {
      RowSums of;
      const int64_t here = std::min<int64_t>(kSumRows, count - first);
      WeightsOf(first, here, of);
      for (int64_t i = here; i < kSumRows; ++i) of.Clear(i, codes.groups());
      alignas(16) float sum[kSumRows];
      AddLanes(of.p, sum);
      for (int64_t i = 0; i < here; ++i) rows.partial.l[group_first + first + i] += sum[i];
      for (int g = 0; g < codes.groups(); ++g)
        ByteSteps(of.most[g], form.unit, inverse[g] + first, step[g] + first);
    }
  }

  void AllRound(int64_t count) {
    const int groups = codes.groups();
    for (int64_t r = 0; r < count; ++r) {
      uint8_t* const to = room.weights + r * groups * kPackedBlock;
      if (Sees(r)) {
        for (int g = 0; g < groups; ++g)
          Round(LogitsAt(r) + g * kPackedBlock, inverse[g][r], to + g * kPackedBlock);
      } else {
        std::fill_n(to, groups * kPackedBlock, uint8_t{0});
      }
    }
  }

  bool Sees(int64_t r) const { return is_plain || ends[r] > page->first; }

  float* Sums() const { return rows.o == nullptr ? rows.partial.o : rows.o; }

  void AddValues(int64_t r) const {
    const F32 d;
    float* const o = Sums() + (group_first + r) * form.dv;
    const int32_t* const sums = room.sums + r * form.dv;
    F32V unit = hn::Set(d, step[0][r]);
    for (int64_t i = 0; i < form.dv; i += static_cast<int64_t>(hn::Lanes(d))) {
      if constexpr (Codes::kSteps) {
        const int64_t g = std::min<int64_t>(i / kPackedGainRows, codes.groups() - 1);
        unit = hn::Mul(hn::Set(d, step[g][r]), hn::LoadU(d, codes.value_step + i));
      }
      const F32V sum = hn::ConvertTo(d, hn::LoadU(I32(), sums + i));
      hn::StoreU(hn::MulAdd(sum, unit, hn::LoadU(d, o + i)), d, o + i);
    }
  }

  // Rows [group_first, +count) at the middle of a page; then the parts of their bias, into set `to`.
  void Turn(const PackedPage& of, int64_t count) const {
    const PackedQueries& q = *rows.queries;
    if (q.planes > 0) TurnToPage(q, *of.basis, rows.first + group_first, count, of.turn, room.z);
  }
  void Biases(const PackedPage& of, int64_t count, int to) const {
    const PackedQueries& q = *rows.queries;
    if (q.planes == 0) return;
    const BiasBasis& basis = *of.basis;
    DotArgs t;
    t.words = reinterpret_cast<const uint32_t*>(basis.values);
    t.stride = t.ldo = kPackedBlock;
    t.groups = basis.functions / 2;
    t.a = room.z;
    t.b = room.z + TurnedStride(basis) / 2;
    t.lda = TurnedStride(basis);
    t.out = room.bias[to];
    Dot<DotKind::kBias, kReady>(t, kPackedBlock, count);
  }

  void Keys(const PackedPage& of, int64_t count, int to) const {
    codes.Keys(of, *rows.queries, rows.first + group_first, count, room.scores[to]);
  }

  void Values(int64_t count) const {
    if constexpr (!Codes::kSteps) {
      if (is_plain) return codes.AddValues(*page, count, step[0], Sums() + group_first * form.dv);
    }
    codes.Values(*page, count);
    for (int64_t r = 0; r < count; ++r)
      if (Sees(r)) AddValues(r);
  }

  // Rows [first, first + count). there: their scores stand in set `turn` already. next: may be null.
  void Group(int64_t first, int64_t count, bool there, const PackedPage* next) {
    group_first = first;
    const int other = 1 - turn;
    if (!there) {
      Turn(*page, count);
      Biases(*page, count, turn);
      Keys(*page, count, turn);
    }
    Begin(count);
    // Between steps that wait for each other stand those of the next page.
    if (next != nullptr) Turn(*next, count);
    AllWeights(count);
    if (next != nullptr) Biases(*next, count, other);
    if (next != nullptr) Keys(*next, count, other);
    AllRound(count);
    Values(count);
  }

  const PackedForm& form;
  const PackedRows& rows;
  const PackedRoom& room;
  bool fused;  // codes are read from the page's words
  Codes codes;
  const PackedPage* page = nullptr;
  int turn = 0;
  bool is_plain = false;  // every row sees every slot, and nobody collects scores
  int64_t group_first = 0;
  int ends[kPackedGroup];  // slots [page->first, end) are seen; none when end <= page->first
  // Bytes a unit of weight, and what a byte stands for.
  alignas(16) float inverse[Codes::kMaxGroups][kPackedGroup], step[Codes::kMaxGroups][kPackedGroup];
  F32V k_scale[Codes::kMaxGroups][kParts], v_scale[Codes::kMaxGroups][kParts];
};
static_assert(kPackedGroup % kSumRows == 0);

// A page for all rows.
template <class Codes>
HWY_INLINE void StepThroughPage(PageStep<Codes>& step, const PackedPage& page,
                                const PackedPage* next, PackedScratch& scratch) {
  const PackedRows& rows = step.rows;
  step.Enter(page, scratch.turn);
  for (int g = 0; g <= Codes::TermScale(step.codes.terms() - 1); ++g)
    FetchAhead(page.k_scales + g * kPackedBlock + page.next);
  for (int g = 0; g < step.codes.groups(); ++g)
    FetchAhead(page.v_scales + g * kPackedBlock + page.next);
  const bool there = scratch.Holds(page.k_words, rows.first, rows.rows);
  scratch.ahead = nullptr;
  if (step.fused) {
    step.Group(0, rows.rows, there, next);
    if (next == nullptr) return;
    scratch.ahead = next->k_words;
    scratch.ahead_first = rows.first, scratch.ahead_rows = rows.rows;
    scratch.turn = 1 - scratch.turn;
    return;
  }
  step.codes.Unpack(page);
  for (int64_t r = 0; r < rows.rows; r += kPackedGroup)
    step.Group(r, std::min(kPackedGroup, rows.rows - r), false, nullptr);
}

template <class Codes>
HWY_INLINE void StepThroughPages(const PackedForm& form, const PackedRun& run,
                                 const PackedRows& rows, PackedScratch& scratch) {
  PageStep<Codes> step(form, rows, scratch.room);
  for (int64_t i = 0; i < run.count; ++i) {
    const PackedPage* const next = i + 1 < run.count ? run.pages + i + 1 : run.next;
    StepThroughPage(step, run.pages[i], next, scratch);
  }
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRING_CPU_PACKED_PAGE_INL_H_
