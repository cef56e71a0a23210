// SPDX-License-Identifier: Apache-2.0
// The steps of one page: bias, scores, weights, values, each for a few rows at a time so that what they pass on stays in
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
//   kSteps, value_step                         whether coefficients of values have units of their own, and those
#if defined(KVRING_CPU_PACKED_PAGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRING_CPU_PACKED_PAGE_INL_H_
#undef KVRING_CPU_PACKED_PAGE_INL_H_
#else
#define KVRING_CPU_PACKED_PAGE_INL_H_
#endif

#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/packed_registers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

// z of some rows, turned to the page's middle and rounded to int16: [rows][2][stride], re, then im.
inline void TurnToPage(const PackedQueries& q, int64_t first, int64_t rows, const float* turn,
                       uint32_t* out) {
  const F32 d;
  const int64_t stride = q.stride;
  int16_t* to = reinterpret_cast<int16_t*>(out);
  for (int64_t r = 0; r < rows; ++r, to += 2 * stride) {
    const float* const z = q.z.data() + (first + r) * 2 * stride;
    for (int64_t p = 0; p < stride; p += static_cast<int64_t>(hn::Lanes(d))) {
      const auto re = hn::LoadU(d, z + p), im = hn::LoadU(d, z + stride + p);
      const auto c = hn::LoadU(d, turn + p), s = hn::LoadU(d, turn + stride + p);
      StoreHalfWords(ToNearest(hn::MulAdd(im, s, hn::Mul(re, c))), to + p);
      StoreHalfWords(ToNearest(hn::NegMulAdd(re, s, hn::Mul(im, c))), to + stride + p);
    }
  }
}

// Everything of a page that its rows share.
template <class Codes>
struct PageStep {
  using RowSums = LaneSums<Codes::kMaxGroups>;
  PageStep(const PackedForm& form, const PackedPage& page, const PackedRows& rows,
           const PackedRoom& room, int turn)
      : form(form),
        page(page),
        rows(rows),
        room(room),
        turn(turn),
        fused(KVRING_VNNI && rows.rows <= kFusedRows),
        codes(form, room, *rows.queries, fused) {
    for (int g = 0; g <= Codes::TermScale(codes.terms() - 1); ++g)
      ScaleFloats(page.k_scales + g * kPackedBlock, k_scale[g]);
    for (int g = 0; g < codes.groups(); ++g)
      ScaleFloats(page.v_scales + g * kPackedBlock, v_scale[g]);
  }

  // x = logits of row r (of the group); slots that it does not see are -inf.
  HWY_INLINE void Logits(int64_t r, int end, F32V* x) const {
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
    if (rows.scores != nullptr) {
      float* const s = LogitsAt(r);
      for (int i = 0; i < kParts; ++i) hn::StoreU(x[i], d, s + PartAt(i));
      rows.scores->AddScores(row, page.begin + page.first, end - page.first, s + page.first);
    }
    if (page.first > 0 || end < kPackedBlock) Hide(end, x);
  }

  // Slots outside [page.first, end).
  void Hide(int end, F32V* x) const {
    const F32 d;
    const F32V low = hn::Set(d, static_cast<float>(page.first));
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

  // What the row's sums are relative to, for these logits: a page's largest only where it passes the old one by more than the
  // slack, so that most pages scale no sums and wait for no maximum over lanes.
  HWY_INLINE float Reference(int64_t r, const F32V* x) {
    const F32 d;
    float* const m = rows.partial.m + group_first + r;
    F32V top = x[0];
    for (int i = 1; i < kParts; ++i) top = hn::Max(top, x[i]);
    const F32V bound = hn::Set(d, *m + kPackedSlack);
    if (!hn::AllFalse(d, hn::Gt(top, bound))) Move(r, hn::GetLane(hn::MaxOfLanes(d, top)));
    if (rows.o != nullptr && rows.o_m[group_first + r] != *m) MoveTurned(r);
    return *m;
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

  // Row r's logits to weights p_n s_n of every group; sums of p and the largest weights by lanes.
  HWY_INLINE void Weights(int64_t r, RowSums& of, int64_t place) {
    const F32 d;
    F32V x[kParts];
    Logits(r, ends[r], x);
    const F32V shift = hn::Set(d, Reference(r, x));
    float* const s = LogitsAt(r);
    F32V* const sum = of.p[place];
    for (int i = 0; i < kParts; ++i) {
      const F32V p = Exp2VecBelow(d, hn::Sub(x[i], shift));
      sum[i % kSumRegisters] = i < kSumRegisters ? p : hn::Add(sum[i % kSumRegisters], p);
      for (int g = 0; g < codes.groups(); ++g) {
        const F32V weight = hn::Mul(p, v_scale[g][i]);
        hn::StoreU(weight, d, s + g * kPackedBlock + PartAt(i));
        F32V& most = of.most[g][place];
        most = i == 0 ? weight : hn::Max(most, weight);
      }
    }
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
      const int64_t seen = rows.positions[row] - page.begin + 1;
      ends[r] = static_cast<int>(std::min<int64_t>(page.tokens, seen));
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
      for (int64_t i = 0; i < kSumRows; ++i)
        i < here&& Sees(first + i) ? Weights(first + i, of, i) : of.Clear(i, codes.groups());
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

  bool Sees(int64_t r) const { return ends[r] > page.first; }

  void AddValues(int64_t r) const {
    const F32 d;
    float* const o = (rows.o == nullptr ? rows.partial.o : rows.o) + (group_first + r) * form.dv;
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

  // Parts of the bias of rows [group_first, +count) for a page, into set `to`.
  void Biases(const PackedPage& of, int64_t count, int to) const {
    const PackedQueries& q = *rows.queries;
    if (q.planes == 0) return;
    TurnToPage(q, rows.first + group_first, count, of.turn, room.z);
    DotArgs t;
    t.words = reinterpret_cast<const uint32_t*>(of.cosines);
    t.stride = t.ldo = kPackedBlock;
    t.groups = q.stride / 2;
    t.a = room.z;
    t.b = room.z + q.stride / 2;
    t.lda = q.stride;
    t.out = room.bias[to];
    Dot<DotKind::kBias, kReady>(t, kPackedBlock, count);
  }

  void Keys(const PackedPage& of, int64_t count, int to) const {
    codes.Keys(of, *rows.queries, rows.first + group_first, count, room.scores[to]);
  }

  void Values(int64_t count) const {
    codes.Values(page, count);
    for (int64_t r = 0; r < count; ++r)
      if (Sees(r)) AddValues(r);
  }

  // Rows [first, first + count). there: their scores stand in set `turn` already. next: may be null.
  void Group(int64_t first, int64_t count, bool there, const PackedPage* next) {
    group_first = first;
    const int other = 1 - turn;
    if (!there) {
      Biases(page, count, turn);
      Keys(page, count, turn);
    }
    Begin(count);
    AllWeights(count);
    if (next != nullptr) Biases(*next, count, other);
    if (next != nullptr) Keys(*next, count, other);
    AllRound(count);
    Values(count);
  }

  const PackedForm& form;
  const PackedPage& page;
  const PackedRows& rows;
  const PackedRoom& room;
  int turn;    // the set of scores that is this page's
  bool fused;  // codes are read from the page's words
  Codes codes;
  int64_t group_first = 0;
  int ends[kPackedGroup];  // slots [page.first, end) are seen; none when end <= page.first
  // Bytes a unit of weight, and what a byte stands for.
  alignas(16) float inverse[Codes::kMaxGroups][kPackedGroup], step[Codes::kMaxGroups][kPackedGroup];
  F32V k_scale[Codes::kMaxGroups][kParts], v_scale[Codes::kMaxGroups][kParts];
};
static_assert(kPackedGroup % kSumRows == 0);

// A page for all rows.
template <class Codes>
HWY_INLINE void StepThroughPage(const PackedForm& form, const PackedPage& page,
                                const PackedPage* next, const PackedRows& rows,
                                PackedScratch& scratch) {
  PageStep<Codes> step(form, page, rows, scratch.room, scratch.turn);
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

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRING_CPU_PACKED_PAGE_INL_H_
