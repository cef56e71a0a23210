// SPDX-License-Identifier: Apache-2.0
// The steps of one page: bias, scores, weights, values, each for a few rows at a time so that what they pass on stays in
// the first-level cache. Online softmax in base 2 as in attend_tile.cc.
#define HWY_WANT_AVX3_DL  // Highway builds its newest x86 target on demand only

#include "kernels/cpu/attend_packed.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend_packed.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/exp2-inl.h"
#include "kernels/cpu/packed_dot-inl.h"

#ifndef KVRING_CPU_ATTEND_PACKED_ONCE
#define KVRING_CPU_ATTEND_PACKED_ONCE
namespace kvring {

// Rows that go through the steps together.
inline constexpr int64_t kPackedGroup = 12;
struct RowStep {
  int end;  // slots [page.first, end) are seen; none when end <= page.first
  float m, step;
};

}  // namespace kvring
#endif

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

constexpr int kHalf = kPackedBlock / 2;
constexpr int kParts =
    kPackedBlock / static_cast<int>(hn::MaxLanes(F32()));  // registers of a page's slots

template <class D>
HWY_INLINE float SumTree(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return SumTree(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    v = hn::Add(v, hn::Shuffle1032(v));
    return hn::GetLane(hn::Add(v, hn::Shuffle2301(v)));
  }
}

// Sum of 16 virtual lanes, lane i + lane i + 8 and so on: the order of SumLanes16, in registers.
HWY_INLINE float SumVirtual(const F32V* v) {
  constexpr size_t kRegisters = 16 / hn::MaxLanes(F32());
  if constexpr (kRegisters == 1) return SumTree(F32(), v[0]);
  if constexpr (kRegisters == 2) return SumTree(F32(), hn::Add(v[0], v[1]));
  return SumLanes16(v);
}

// s[i] = 2^((e[i] - 112) / 8), 0 for e = 0: ScaleValue of kernels/codec/lloyd_max.h on registers.
HWY_INLINE void ScaleFloats(const uint8_t* e, F32V* s) {
  const F32 d;
  const I32 di;
  const hn::Rebind<uint8_t, F32> d8;
  constexpr float k = 0x1p-14f;
  alignas(64) static constexpr float kEighths[16] = {k,
                                                     1.09050773f * k,
                                                     1.18920712f * k,
                                                     1.29683955f * k,
                                                     1.41421356f * k,
                                                     1.54221083f * k,
                                                     1.68179283f * k,
                                                     1.83400809f * k,
                                                     k,
                                                     1.09050773f * k,
                                                     1.18920712f * k,
                                                     1.29683955f * k,
                                                     1.41421356f * k,
                                                     1.54221083f * k,
                                                     1.68179283f * k,
                                                     1.83400809f * k};
  for (int i = 0; i < kParts; ++i) {
    const auto byte = hn::PromoteTo(di, hn::LoadU(d8, e + i * hn::Lanes(d)));
    const auto eighth = hn::And(byte, hn::Set(di, 7));
    F32V mantissa;
    if constexpr (hn::MaxLanes(F32()) >= 8) {
      mantissa = hn::TableLookupLanes(hn::Load(d, kEighths), hn::IndicesFromVec(d, eighth));
    } else {
      mantissa = hn::GatherIndex(d, kEighths, eighth);
    }
    // 2^-14 is in the table; the byte's other bits are the exponent.
    const auto power = hn::ShiftLeft<20>(hn::Xor(byte, eighth));
    const auto scale = hn::Add(hn::BitCast(di, mantissa), power);
    s[i] = hn::BitCast(d, hn::IfThenElseZero(hn::Ne(byte, hn::Zero(di)), scale));
  }
}

// Bytes of 64 slots into the order in which codes come apart: at 4 bits even slots of eight before odd ones, at 2 bits
// every fourth of sixteen.
HWY_INLINE void StoreInOrder(int bits, const uint8_t* x, uint8_t* to, int64_t n) {
  alignas(16) static constexpr uint8_t kFour[16] = {0, 2,  4,  6,  1, 3,  5,  7,
                                                    8, 10, 12, 14, 9, 11, 13, 15};
  alignas(16) static constexpr uint8_t kTwo[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                   2, 6, 10, 14, 3, 7, 11, 15};
  const hn::FixedTag<uint8_t, 16> d;
  if (bits == 3 || bits == 8) {
    if (x != to) std::copy_n(x, n, to);
    return;
  }
  const auto order = hn::Load(d, bits == 4 ? kFour : kTwo);
  for (int64_t i = 0; i < n; i += 16)
    hn::StoreU(hn::TableLookupBytes(hn::LoadU(d, x + i), order), d, to + i);
}

#if KVRING_VNNI
// Where x86's packing of four registers of 16 numbers to one of 64 bytes leaves the byte that stands at each place in the
// order of StoreInOrder: 4 numbers of each register in turn, once in every 16 bytes.
struct PackedOrders {
  alignas(64) uint8_t at[3][kPackedBlock];  // in slot order, at 4 bits, at 2 bits
};
constexpr PackedOrders MakePackedOrders() {
  PackedOrders orders{};
  for (int i = 0; i < kPackedBlock; ++i) {
    const int four = i / 8 * 8 + i % 4 * 2 + i / 4 % 2, two = i / 16 * 16 + i % 4 * 4 + i / 4 % 4;
    const int slots[3] = {i, four, two};
    for (int k = 0; k < 3; ++k) {
      const int slot = slots[k];
      orders.at[k][i] = static_cast<uint8_t>(slot % 16 / 4 * 16 + slot / 16 * 4 + slot % 4);
    }
  }
  return orders;
}
constexpr PackedOrders kPackedOrders = MakePackedOrders();
HWY_INLINE const uint8_t* PackedOrder(int bits) {
  return kPackedOrders.at[bits == 4 ? 1 : bits == 2 ? 2 : 0];
}
#endif

// z of some rows, turned to the page's middle and rounded to int16: [rows][2][stride], re, then im.
void TurnToPage(const PackedQueries& q, int64_t first, int64_t rows, const float* turn,
                uint32_t* out) {
  const F32 d;
  const hn::Rebind<int16_t, I32> d16;
  const int64_t stride = q.stride;
  int16_t* to = reinterpret_cast<int16_t*>(out);
  for (int64_t r = 0; r < rows; ++r, to += 2 * stride) {
    const float* const z = q.z.data() + (first + r) * 2 * stride;
    for (int64_t p = 0; p < stride; p += static_cast<int64_t>(hn::Lanes(d))) {
      const auto re = hn::LoadU(d, z + p), im = hn::LoadU(d, z + stride + p);
      const auto c = hn::LoadU(d, turn + p), s = hn::LoadU(d, turn + stride + p);
      const auto a = hn::NearestInt(hn::MulAdd(im, s, hn::Mul(re, c)));
      const auto b = hn::NearestInt(hn::NegMulAdd(re, s, hn::Mul(im, c)));
      hn::StoreU(hn::DemoteTo(d16, a), d16, to + p);
      hn::StoreU(hn::DemoteTo(d16, b), d16, to + stride + p);
    }
  }
}

template <DotKind kKind>
HWY_INLINE void DotBits(int bits, const DotArgs& t, int64_t lanes, int64_t rows) {
  // Elsewhere taking codes apart costs too much to do it again for every pass.
  if (!KVRING_VNNI || bits == kReady) return Dot<kKind, kReady>(t, lanes, rows);
#if KVRING_VNNI
  if (bits == 2) return Dot<kKind, 2>(t, lanes, rows);
  if (bits == 3) return Dot<kKind, 3>(t, lanes, rows);
  if (bits == 4) return Dot<kKind, 4>(t, lanes, rows);
  Dot<kKind, 8>(t, lanes, rows);
#endif
}

template <DotKind kKind>
HWY_INLINE void UnpackBits(int bits, const DotArgs& t, int64_t lanes, uint32_t* to) {
  if (bits == 2) return Unpack<kKind, 2>(t, lanes, to);
  if (bits == 3) return Unpack<kKind, 3>(t, lanes, to);
  if (bits == 4) return Unpack<kKind, 4>(t, lanes, to);
  Unpack<kKind, 8>(t, lanes, to);
}

// Everything of a page that its rows share.
struct PageStep {
  PageStep(const PackedForm& form, const PackedPage& page, const PackedRows& rows,
           const PackedRoom& room, int turn)
      : form(form),
        page(page),
        rows(rows),
        room(room),
        turn(turn),
        fused(KVRING_VNNI && rows.rows <= kFusedRows) {
    ScaleFloats(page.k_scales, k_scale);
    ScaleFloats(page.v_scales, v_scale);
  }

  DotArgs Side(const PackedPage& from, const uint8_t* words, int64_t stride, int dim) const {
    DotArgs t;
    t.words = reinterpret_cast<const uint32_t*>(words);
    t.stride = stride;
    t.next = from.next;
    t.groups = dim / 4;
    t.level = form.level;
    return t;
  }

  // s = logits of row r (of the group); slots that it does not see are -inf. What the row's maximum becomes.
  float Logits(int64_t r, int end, float old_m, float* s) const {
    const F32 d;
    const PackedQueries& q = *rows.queries;
    const int64_t row = rows.first + group_first + r;
    const F32V step = hn::Set(d, form.unit * q.q_scale[row]);
    F32V top = hn::Set(d, old_m), x[kParts];
    Bias(r, row, x);
    for (int i = 0; i < kParts; ++i) {
      const F32V sum =
          hn::ConvertTo(d, hn::LoadU(I32(), room.scores[turn] + r * kPackedBlock + At(i)));
      x[i] = hn::MulAdd(sum, hn::Mul(k_scale[i], step), x[i]);
      hn::StoreU(x[i], d, s + At(i));
    }
    if (rows.scores != nullptr) {
      rows.scores->AddScores(row, page.begin + page.first, end - page.first, s + page.first);
    }
    if (page.first > 0 || end < kPackedBlock) {
      const F32V low = hn::Set(d, static_cast<float>(page.first));
      const F32V high = hn::Set(d, static_cast<float>(end));
      const F32V never = hn::Set(d, -std::numeric_limits<float>::infinity());
      for (int i = 0; i < kParts; ++i) {
        const F32V slot = hn::Iota(d, static_cast<float>(At(i)));
        x[i] = hn::IfThenElse(hn::And(hn::Ge(slot, low), hn::Lt(slot, high)), x[i], never);
        hn::StoreU(x[i], d, s + At(i));
      }
    }
    for (int i = 0; i < kParts; ++i) top = hn::Max(top, x[i]);
    return hn::GetLane(hn::MaxOfLanes(d, top));
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
      const I32V e = hn::LoadU(I32(), even + At(i)), o = hn::LoadU(I32(), odd + At(i));
      b[kParts / 2 + i] = hn::MulAdd(hn::ConvertTo(d, hn::Add(e, o)), step, constant);
      b[kParts / 2 - 1 - i] =
          hn::Reverse(d, hn::MulAdd(hn::ConvertTo(d, hn::Sub(e, o)), step, constant));
    }
  }

  // Logits of row r to weights p_n s_n; l takes their sum before the values' scales come in. The largest weight.
  float Weights(const RowStep& step, float alpha, int64_t r, float* s) const {
    const F32 d;
    constexpr int kRegisters = static_cast<int>(16 / hn::MaxLanes(F32()));
    F32V sum[kRegisters];
    F32V most = hn::Zero(d);
    const F32V shift = hn::Set(d, step.m);
    for (int i = 0; i < kParts; ++i) {
      const F32V p = Exp2VecBelow(d, hn::Sub(hn::LoadU(d, s + At(i)), shift));
      sum[i % kRegisters] = i < kRegisters ? p : hn::Add(sum[i % kRegisters], p);
      const F32V weight = hn::Mul(p, v_scale[i]);
      hn::StoreU(weight, d, s + At(i));
      most = hn::Max(most, weight);
    }
    float* const l = rows.partial.l + group_first + r;
    *l = *l * alpha + SumVirtual(sum);
    return hn::GetLane(hn::MaxOfLanes(d, most));
  }

  // Weights to bytes in steps of largest / 255.
  float Round(const float* s, float largest, uint8_t* to) const {
    const F32 d;
    [[maybe_unused]] const hn::Rebind<uint8_t, I32> d8;
    // Weights that small add nothing; and 255 over them would leave fp32's range.
    const bool any = largest >= 0x1p-100f;
    const F32V inverse = hn::Set(d, any ? 255.0f / largest : 0.0f);
#if KVRING_VNNI
    I32V level[kParts];
    for (int i = 0; i < kParts; ++i)
      level[i] = hn::NearestInt(hn::Mul(hn::LoadU(d, s + At(i)), inverse));
    const __m512i low = _mm512_packs_epi32(level[0].raw, level[1].raw);
    const __m512i high = _mm512_packs_epi32(level[2].raw, level[3].raw);
    const __m512i bytes = _mm512_packus_epi16(low, high);
    _mm512_storeu_si512(to,
                        _mm512_permutexvar_epi8(_mm512_load_si512(PackedOrder(form.bits)), bytes));
#else
    for (int i = 0; i < kParts; ++i) {
      const auto level = hn::NearestInt(hn::Mul(hn::LoadU(d, s + At(i)), inverse));
      hn::StoreU(hn::DemoteTo(d8, level), d8, to + At(i));
    }
    StoreInOrder(form.bits, to, to, kPackedBlock);
#endif
    return any ? largest / 255.0f * form.unit : 0.0f;
  }

  // Each step is taken by all rows before the next one: rows wait for no chain but their own.
  void AllLogits(int64_t count) {
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = group_first + r;
      const int64_t seen = rows.positions[row] - page.begin + 1;
      steps[r].end = static_cast<int>(std::min<int64_t>(page.tokens, seen));
      if (!Sees(r)) continue;
      float *m = rows.partial.m + row, *l = rows.partial.l + row;
      if (*l == 0.0f) {
        *m = -std::numeric_limits<float>::infinity();
        std::fill_n(rows.partial.o + row * form.dv, form.dv, 0.0f);
      }
      steps[r].m = Logits(r, steps[r].end, *m, room.logits + r * kPackedBlock);
      alpha[r] = *m - steps[r].m;
      *m = steps[r].m;
    }
  }

  void AllWeights(int64_t count) {
    const F32 d;
    for (int64_t r = 0; r < count; r += static_cast<int64_t>(hn::Lanes(d)))
      hn::Store(Exp2VecBelow(d, hn::Load(d, alpha + r)), d, alpha + r);
    for (int64_t r = 0; r < count; ++r)
      if (Sees(r)) largest[r] = Weights(steps[r], alpha[r], r, room.logits + r * kPackedBlock);
  }

  void AllRound(int64_t count) {
    for (int64_t r = 0; r < count; ++r) {
      uint8_t* const to = room.weights + r * kPackedBlock;
      if (Sees(r)) {
        steps[r].step = Round(room.logits + r * kPackedBlock, largest[r], to);
      } else {
        std::fill_n(to, kPackedBlock, uint8_t{0});
      }
    }
  }

  bool Sees(int64_t r) const { return steps[r].end > page.first; }
  static constexpr int64_t At(int64_t part) {
    return part * static_cast<int64_t>(hn::MaxLanes(F32()));
  }

  void AddValues(int64_t r, const RowStep& step, float scale) const {
    const F32 d;
    float* const o = rows.partial.o + (group_first + r) * form.dv;
    const int32_t* const sums = room.sums + r * form.dv;
    const F32V alpha = hn::Set(d, scale), unit = hn::Set(d, step.step);
    for (int64_t i = 0; i < form.dv; i += static_cast<int64_t>(hn::Lanes(d))) {
      const F32V sum = hn::ConvertTo(d, hn::LoadU(I32(), sums + i));
      hn::StoreU(hn::MulAdd(sum, unit, hn::Mul(alpha, hn::LoadU(d, o + i))), d, o + i);
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
    const PackedQueries& q = *rows.queries;
    const int64_t row = rows.first + group_first;
    DotArgs t = Side(of, of.k_words, kPackedBlock, form.dk);
    if (!fused) t.words = room.keys;
    t.a = reinterpret_cast<const uint32_t*>(q.q.data() + row * q.dk);
    t.lda = q.dk / 4;
    t.q_sum = q.q_sum.data() + row;
    t.out = room.scores[to];
    t.ldo = kPackedBlock;
    DotBits<DotKind::kQuery>(fused ? form.bits : kReady, t, kPackedBlock, count);
  }

  void Values(int64_t count) const {
    DotArgs t = Side(page, page.v_words, form.dv, kPackedBlock);
    if (!fused) t.words = room.values;
    t.a = reinterpret_cast<const uint32_t*>(room.weights);
    t.lda = kPackedBlock / 4;
    t.out = room.sums;
    t.ldo = form.dv;
    DotBits<DotKind::kWeight>(fused ? form.bits : kReady, t, form.dv, count);
    for (int64_t r = 0; r < count; ++r)
      if (Sees(r)) AddValues(r, steps[r], alpha[r]);
  }

  // Rows [first, first + count). there: their scores stand in set `turn` already. next: may be null.
  void Group(int64_t first, int64_t count, bool there, const PackedPage* next) {
    group_first = first;
    const int other = 1 - turn;
    if (!there) {
      Biases(page, count, turn);
      Keys(page, count, turn);
    }
    AllLogits(count);
    if (next != nullptr) Biases(*next, count, other);
    AllWeights(count);
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
  int64_t group_first = 0;
  RowStep steps[kPackedGroup];
  float largest[kPackedGroup];
  alignas(64) float alpha[16] = {};
  F32V k_scale[kParts], v_scale[kParts];
};
static_assert(kPackedGroup <= 16);

void AttendPageImpl(const PackedForm& form, const PackedPage& page, const PackedPage* next,
                    const PackedRows& rows, PackedScratch& scratch) {
  for (const uint8_t* scales : {page.k_scales, page.v_scales}) FetchAhead(scales + page.next);
  const PackedRoom& room = scratch.room;
  PageStep step(form, page, rows, room, scratch.turn);
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
  UnpackBits<DotKind::kQuery>(form.bits, step.Side(page, page.k_words, kPackedBlock, form.dk),
                              kPackedBlock, room.keys);
  UnpackBits<DotKind::kWeight>(form.bits, step.Side(page, page.v_words, form.dv, kPackedBlock),
                               form.dv, room.values);
  for (int64_t r = 0; r < rows.rows; r += kPackedGroup)
    step.Group(r, std::min(kPackedGroup, rows.rows - r), false, nullptr);
}

void QuantizeRow(int bits, const float* q, int dk, int8_t* to, float* scale, int32_t* sum) {
  const F32 d;
  const I32 di;
  const hn::Rebind<int8_t, I32> d8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  F32V most = hn::Zero(d), total = hn::Zero(d);
  for (int64_t i = 0; i < dk; i += lanes) {
    const F32V x = hn::LoadU(d, q + i);
    most = hn::Max(most, hn::Abs(x));
    total = hn::Add(total, x);
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, most));
  // Below 1e-30 a query is zero; NaN, which a maximum may lose, stays in a sum.
  const F32V inverse = hn::Set(d, largest >= 1e-30f ? 127.0f / largest : 0.0f);
  const float check = hn::GetLane(hn::SumOfLanes(d, total));
  *scale = check == check ? largest / 127.0f : check;
  auto bytes = hn::Zero(di);
  for (int64_t i = 0; i < dk; i += lanes) {
    const auto level = hn::NearestInt(hn::Mul(hn::LoadU(d, q + i), inverse));
    bytes = hn::Add(bytes, level);
    hn::StoreU(hn::DemoteTo(d8, level), d8, to + i);
  }
  // Unsigned: the levels of a NaN are any number, and what comes of them is not read.
  *sum = static_cast<int32_t>(128u * static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(di, bytes))));
  uint8_t* const x = reinterpret_cast<uint8_t*>(to);
  StoreInOrder(bits, x, x, dk);
}

// z [2][stride] in place, in steps of *scale: the sum of |z_p| becomes 32767, so that int32 sums with 32767 cos, sin and half
// a unit of rounding per number cannot overflow.
void ScaleTurned(float* z, int64_t stride, float* scale) {
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int kRegisters = static_cast<int>(16 / hn::MaxLanes(F32()));
  F32V sum[kRegisters];
  for (F32V& s : sum) s = hn::Zero(d);
  for (int64_t p = 0, i = 0; p < stride; p += lanes, i = (i + 1) % kRegisters) {
    const F32V re = hn::LoadU(d, z + p), im = hn::LoadU(d, z + stride + p);
    sum[i] = hn::Add(sum[i], hn::Sqrt(hn::MulAdd(re, re, hn::Mul(im, im))));
  }
  const float total = SumVirtual(sum);
  const F32V inverse = hn::Set(d, total >= 1e-30f ? 32767.0f / total : 0.0f);
  *scale = total / (32767.0f * 32767.0f);
  for (int64_t p = 0; p < 2 * stride; p += lanes)
    hn::StoreU(hn::Mul(hn::LoadU(d, z + p), inverse), d, z + p);
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {
namespace {

HWY_EXPORT(AttendPageImpl);
HWY_EXPORT(QuantizeRow);
HWY_EXPORT(ScaleTurned);

// Each part on whole cache lines.
void MakeRoom(const PackedForm& form, int stride, PackedScratch& scratch) {
  PackedRoom& room = scratch.room;
  room.dk = form.dk, room.dv = form.dv, room.stride = stride;
  const int64_t slots = kPackedGroup * kPackedBlock;
  const int64_t sizes[] = {int64_t{form.dk} * 16,
                           int64_t{form.dv} * 16,
                           slots,
                           slots,
                           slots,
                           slots,
                           kPackedGroup * form.dv,
                           slots,
                           slots / 4,
                           kPackedGroup * stride};
  constexpr int kPieces = std::size(sizes);
  int64_t words = 16;
  for (const int64_t size : sizes) words += (size + 15) / 16 * 16;
  scratch.words.resize(static_cast<size_t>(words));
  uint32_t* at = scratch.words.data();
  while (reinterpret_cast<uintptr_t>(at) % 64 != 0) ++at;
  uint32_t* piece[kPieces];
  for (int i = 0; i < kPieces; at += (sizes[i] + 15) / 16 * 16, ++i) piece[i] = at;
  const auto sums = [&](int i) { return reinterpret_cast<int32_t*>(piece[i]); };
  room.keys = piece[0];
  room.values = piece[1];
  for (int i = 0; i < 2; ++i) {
    room.scores[i] = sums(2 + i);
    room.bias[i] = sums(4 + i);
  }
  room.sums = sums(6);
  room.logits = reinterpret_cast<float*>(piece[7]);
  room.weights = reinterpret_cast<uint8_t*>(piece[8]);
  room.z = piece[9];
  scratch.ahead = nullptr;
}

}  // namespace

bool PackedFormFits(const PackedForm& form) { return form.dk % 32 == 0 && form.dv % 16 == 0; }

void QuantizeQueries(const PackedForm& form, const float* q, int64_t rows, PackedQueries& out) {
  out.rows = rows;
  out.dk = form.dk;
  out.q.resize(static_cast<size_t>(rows * form.dk));
  out.q_scale.resize(static_cast<size_t>(rows));
  out.q_sum.resize(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    HWY_DYNAMIC_DISPATCH(QuantizeRow)
    (form.bits, q + r * form.dk, form.dk, out.q.data() + r * form.dk, &out.q_scale[r],
     &out.q_sum[r]);
  }
}

void TurnQueries(const RopeTable& rope, const float* mean, const float* raw_q, int64_t rows,
                 PackedQueries& out) {
  out.planes = rope.planes();
  out.stride = (out.planes + 15) / 16 * 16;
  out.z.assign(static_cast<size_t>(rows * 2 * out.stride), 0.0f);
  out.z_scale.resize(static_cast<size_t>(rows));
  out.constant.resize(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    const float* const q = raw_q + r * rope.head_dim;
    float *re = out.z.data() + r * 2 * out.stride, *im = re + out.stride;
    for (int p = 0; p < out.planes; ++p) {
      const int a = rope.First(p), b = rope.Second(p);
      re[p] = (q[a] * mean[a] + q[b] * mean[b]) * rope.attention_scale;
      im[p] = (q[b] * mean[a] - q[a] * mean[b]) * rope.attention_scale;
    }
    float constant = 0.0f;
    for (int i = 2 * out.planes; i < rope.head_dim; ++i) constant += q[i] * mean[i];
    out.constant[r] = constant;
    HWY_DYNAMIC_DISPATCH(ScaleTurned)(re, out.stride, &out.z_scale[r]);
  }
}

void AttendPackedPage(const PackedForm& form, const PackedPage& page, const PackedPage* next,
                      const PackedRows& rows, PackedScratch& scratch) {
  const int stride = rows.queries->stride;
  const PackedRoom& room = scratch.room;
  if (room.dk != form.dk || room.dv != form.dv || room.stride != stride)
    MakeRoom(form, stride, scratch);
  HWY_DYNAMIC_DISPATCH(AttendPageImpl)(form, page, next, rows, scratch);
}

}  // namespace kvring
#endif
