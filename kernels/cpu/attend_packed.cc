// SPDX-License-Identifier: Apache-2.0
// The steps of one page: bias, scores, weights, values, each for a few rows at a time so that what they pass on stays in
// the first-level cache. Online softmax in base 2 as in attend_tile.cc.
#define HWY_WANT_AVX3_DL  // Highway builds its newest x86 target on demand only

#include "kernels/cpu/attend_packed.h"

#include <algorithm>
#include <cmath>
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
// Up to here codes are taken from the page's words by every pass over rows; beyond, a page is unpacked once.
inline constexpr int64_t kFusedRows = 4;

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
  alignas(64) static constexpr float kEighths[16] = {
      1.0f,        1.09050773f, 1.18920712f, 1.29683955f, 1.41421356f, 1.54221083f,
      1.68179283f, 1.83400809f, 1.0f,        1.09050773f, 1.18920712f, 1.29683955f,
      1.41421356f, 1.54221083f, 1.68179283f, 1.83400809f};
  for (int i = 0; i < kParts; ++i) {
    const auto byte = hn::PromoteTo(di, hn::LoadU(d8, e + i * hn::Lanes(d)));
    const auto eighth = hn::And(byte, hn::Set(di, 7));
    F32V mantissa;
    if constexpr (hn::MaxLanes(F32()) >= 8) {
      mantissa = hn::TableLookupLanes(hn::Load(d, kEighths), hn::IndicesFromVec(d, eighth));
    } else {
      mantissa = hn::GatherIndex(d, kEighths, eighth);
    }
    const auto power = hn::ShiftLeft<23>(hn::Sub(hn::ShiftRight<3>(byte), hn::Set(di, 14)));
    const F32V scale = hn::BitCast(d, hn::Add(hn::BitCast(di, mantissa), power));
    s[i] = hn::IfThenElse(hn::Gt(hn::ConvertTo(d, byte), hn::Zero(d)), scale, hn::Zero(d));
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

// z of some rows, turned to the page's middle and rounded to int16: re, im [rows][stride].
void TurnToPage(const PackedQueries& q, int64_t first, int64_t rows, const float* turn,
                uint32_t* re_out, uint32_t* im_out) {
  const F32 d;
  const hn::Rebind<int16_t, I32> d16;
  const int64_t stride = q.stride;
  int16_t *re_to = reinterpret_cast<int16_t*>(re_out), *im_to = reinterpret_cast<int16_t*>(im_out);
  for (int64_t r = 0; r < rows; ++r, re_to += stride, im_to += stride) {
    const float* const z = q.z.data() + (first + r) * 2 * stride;
    for (int64_t p = 0; p < stride; p += static_cast<int64_t>(hn::Lanes(d))) {
      const auto re = hn::LoadU(d, z + p), im = hn::LoadU(d, z + stride + p);
      const auto c = hn::LoadU(d, turn + p), s = hn::LoadU(d, turn + stride + p);
      const auto a = hn::NearestInt(hn::MulAdd(im, s, hn::Mul(re, c)));
      const auto b = hn::NearestInt(hn::NegMulAdd(re, s, hn::Mul(im, c)));
      hn::StoreU(hn::DemoteTo(d16, a), d16, re_to + p);
      hn::StoreU(hn::DemoteTo(d16, b), d16, im_to + p);
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
           const PackedRoom& room)
      : form(form),
        page(page),
        rows(rows),
        room(room),
        fused(KVRING_VNNI && rows.rows <= kFusedRows) {
    ScaleFloats(page.k_scales, k_scale);
    ScaleFloats(page.v_scales, v_scale);
  }

  DotArgs Side(const uint8_t* words, int64_t stride, int dim) const {
    DotArgs t;
    t.words = reinterpret_cast<const uint32_t*>(words);
    t.stride = stride;
    t.next = page.next;
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
      const F32V sum = hn::ConvertTo(d, hn::LoadU(I32(), room.scores + r * kPackedBlock + At(i)));
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
    const int32_t *even = room.even + r * kHalf, *odd = room.odd + r * kHalf;
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
      const F32V p = Exp2Vec(d, hn::Sub(hn::LoadU(d, s + At(i)), shift));
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
    const hn::Rebind<uint8_t, I32> d8;
    // Weights that small add nothing; and 255 over them would leave fp32's range.
    const bool any = largest >= 0x1p-100f;
    const F32V inverse = hn::Set(d, any ? 255.0f / largest : 0.0f);
    for (int i = 0; i < kParts; ++i) {
      const auto level = hn::NearestInt(hn::Mul(hn::LoadU(d, s + At(i)), inverse));
      hn::StoreU(hn::DemoteTo(d8, level), d8, to + At(i));
    }
    StoreInOrder(form.bits, to, to, kPackedBlock);
    return any ? largest / 255.0f * form.unit : 0.0f;
  }

  // Each step for all rows before the next step: rows wait for no chain but their own.
  void Softmax(int64_t count, RowStep* steps, float* alpha) const {
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = group_first + r;
      const int64_t seen = rows.positions[row] - page.begin + 1;
      steps[r].end = static_cast<int>(std::min<int64_t>(page.tokens, seen));
      alpha[r] = 0.0f;
      if (!Sees(steps[r])) continue;
      float *m = rows.partial.m + row, *l = rows.partial.l + row;
      if (*l == 0.0f) {
        *m = -std::numeric_limits<float>::infinity();
        std::fill_n(rows.partial.o + row * form.dv, form.dv, 0.0f);
      }
      steps[r].m = Logits(r, steps[r].end, *m, room.logits + r * kPackedBlock);
      alpha[r] = *m - steps[r].m;
      *m = steps[r].m;
    }
    const F32 d;
    for (int64_t r = 0; r < count; r += static_cast<int64_t>(hn::Lanes(d)))
      hn::Store(Exp2Vec(d, hn::Load(d, alpha + r)), d, alpha + r);
    float largest[kPackedGroup];
    for (int64_t r = 0; r < count; ++r)
      if (Sees(steps[r]))
        largest[r] = Weights(steps[r], alpha[r], r, room.logits + r * kPackedBlock);
    for (int64_t r = 0; r < count; ++r) {
      uint8_t* const to = room.weights + r * kPackedBlock;
      if (Sees(steps[r])) {
        steps[r].step = Round(room.logits + r * kPackedBlock, largest[r], to);
      } else {
        std::fill_n(to, kPackedBlock, uint8_t{0});
      }
    }
  }

  bool Sees(const RowStep& step) const { return step.end > page.first; }
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

  void Scores(int64_t count) const {
    const PackedQueries& q = *rows.queries;
    const int64_t row = rows.first + group_first;
    if (q.planes > 0) {
      TurnToPage(q, row, count, page.turn, room.re, room.im);
      DotArgs bias;
      bias.stride = kHalf;
      bias.groups = q.stride / 2;
      bias.lda = q.stride / 2;
      bias.ldo = kHalf;
      bias.words = reinterpret_cast<const uint32_t*>(page.cosines);
      bias.a = room.re;
      bias.out = room.even;
      Dot<DotKind::kBias, kReady>(bias, kHalf, count);
      bias.words += bias.groups * kHalf;
      bias.a = room.im;
      bias.out = room.odd;
      Dot<DotKind::kBias, kReady>(bias, kHalf, count);
    }
    DotArgs keys = Side(page.k_words, kPackedBlock, form.dk);
    if (!fused) keys.words = room.keys;
    keys.a = reinterpret_cast<const uint32_t*>(q.q.data() + row * q.dk);
    keys.lda = q.dk / 4;
    keys.q_sum = q.q_sum.data() + row;
    keys.out = room.scores;
    keys.ldo = kPackedBlock;
    DotBits<DotKind::kQuery>(fused ? form.bits : kReady, keys, kPackedBlock, count);
  }

  void Group(int64_t first, int64_t count) {
    group_first = first;
    Scores(count);
    RowStep steps[kPackedGroup];
    alignas(64) float alpha[16];
    static_assert(kPackedGroup <= 16);
    Softmax(count, steps, alpha);
    DotArgs values = Side(page.v_words, form.dv, kPackedBlock);
    if (!fused) values.words = room.values;
    values.a = reinterpret_cast<const uint32_t*>(room.weights);
    values.lda = kPackedBlock / 4;
    values.out = room.sums;
    values.ldo = form.dv;
    DotBits<DotKind::kWeight>(fused ? form.bits : kReady, values, form.dv, count);
    for (int64_t r = 0; r < count; ++r)
      if (Sees(steps[r])) AddValues(r, steps[r], alpha[r]);
  }

  const PackedForm& form;
  const PackedPage& page;
  const PackedRows& rows;
  const PackedRoom& room;
  bool fused;  // codes are read from the page's words
  int64_t group_first = 0;
  F32V k_scale[kParts], v_scale[kParts];
};

void AttendPageImpl(const PackedForm& form, const PackedPage& page, const PackedRows& rows,
                    const PackedRoom& room) {
  for (const uint8_t* scales : {page.k_scales, page.v_scales}) FetchAhead(scales + page.next);
  PageStep step(form, page, rows, room);
  if (!step.fused) {
    UnpackBits<DotKind::kQuery>(form.bits, step.Side(page.k_words, kPackedBlock, form.dk),
                                kPackedBlock, room.keys);
    UnpackBits<DotKind::kWeight>(form.bits, step.Side(page.v_words, form.dv, kPackedBlock), form.dv,
                                 room.values);
  }
  for (int64_t r = 0; r < rows.rows; r += kPackedGroup)
    step.Group(r, std::min(kPackedGroup, rows.rows - r));
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
                           slots / 2,
                           slots / 2,
                           kPackedGroup * form.dv,
                           slots,
                           slots / 4,
                           kPackedGroup * stride / 2,
                           kPackedGroup * stride / 2};
  int64_t words = 16;
  for (const int64_t size : sizes) words += (size + 15) / 16 * 16;
  scratch.words.resize(static_cast<size_t>(words));
  uint32_t* at = scratch.words.data();
  while (reinterpret_cast<uintptr_t>(at) % 64 != 0) ++at;
  uint32_t* part[10];
  for (int i = 0; i < 10; at += (sizes[i] + 15) / 16 * 16, ++i) part[i] = at;
  room.keys = part[0];
  room.values = part[1];
  room.scores = reinterpret_cast<int32_t*>(part[2]);
  room.even = reinterpret_cast<int32_t*>(part[3]);
  room.odd = reinterpret_cast<int32_t*>(part[4]);
  room.sums = reinterpret_cast<int32_t*>(part[5]);
  room.logits = reinterpret_cast<float*>(part[6]);
  room.weights = reinterpret_cast<uint8_t*>(part[7]);
  room.re = part[8];
  room.im = part[9];
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

void AttendPackedPage(const PackedForm& form, const PackedPage& page, const PackedRows& rows,
                      PackedScratch& scratch) {
  const int stride = rows.queries->stride;
  const PackedRoom& room = scratch.room;
  if (room.dk != form.dk || room.dv != form.dv || room.stride != stride)
    MakeRoom(form, stride, scratch);
  HWY_DYNAMIC_DISPATCH(AttendPageImpl)(form, page, rows, room);
}

}  // namespace kvring
#endif
