// SPDX-License-Identifier: Apache-2.0
// Queries to int8, and to the planes of the bias.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/attend_packed.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/packed_queries.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/packed_registers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

// 127 over the largest of n numbers, and what a step stands for.
void FindStep(const float* q, int n, float* inverse, float* scale) {
  const F32 d;
  F32V most = hn::Zero(d), total = hn::Zero(d);
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(d))) {
    const F32V x = hn::LoadU(d, q + i);
    most = hn::Max(most, hn::Abs(x));
    total = hn::Add(total, x);
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, most));
  // Below 1e-30 a query is zero; NaN, which a maximum may lose, stays in a sum.
  *inverse = largest >= 1e-30f ? 127.0f / largest : 0.0f;
  const float check = hn::GetLane(hn::SumOfLanes(d, total));
  *scale = check == check ? largest / 127.0f : check;
}

// n numbers to bytes, in the order in which codes of `order` bits come apart; 128 times their sum.
void QuantizeSpan(int order, const float* q, int n, float inverse, int8_t* to, int32_t* sum) {
  const F32 d;
  const I32 di;
  const hn::Rebind<int8_t, I32> d8;
  const F32V factor = hn::Set(d, inverse);
  auto bytes = hn::Zero(di);
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto level = hn::NearestInt(hn::Mul(hn::LoadU(d, q + i), factor));
    bytes = hn::Add(bytes, level);
    hn::StoreU(hn::DemoteTo(d8, level), d8, to + i);
  }
  // Unsigned: the levels of a NaN are any number, and what comes of them is not read.
  *sum = static_cast<int32_t>(128u * static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(di, bytes))));
  uint8_t* const x = reinterpret_cast<uint8_t*>(to);
  StoreInOrder(order, x, x, n);
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

HWY_EXPORT(FindStep);
HWY_EXPORT(QuantizeSpan);
HWY_EXPORT(ScaleTurned);

constexpr int kClassOrder = 4;  // bytes of a class come apart as codes of 4 bits do

void QuantizeWords(const PackedForm& form, const float* q, int64_t row, PackedQueries& out) {
  float inverse = 0.0f;
  HWY_DYNAMIC_DISPATCH(FindStep)(q, form.dk, &inverse, &out.q_scale[row]);
  HWY_DYNAMIC_DISPATCH(QuantizeSpan)
  (form.bits, q, form.dk, inverse, out.q.data() + row * form.dk, &out.q_sum[row]);
}

// The first term, and all others together, have a step each.
void QuantizeClasses(const PackedForm& form, const float* q, int64_t row, PackedQueries& out) {
  alignas(64) float units[kPackedMaxDim];
  for (int i = 0; i < form.dk; ++i)
    units[i] = q[i] * form.levels->unit[form.k_bits[i / kPackedClass]];
  int8_t* const to = out.q.data() + row * form.dk;
  const int first = form.TermEnd(0) * kPackedClass;
  float inverse[2] = {};
  float* const scale = out.q_scale.data() + row * out.steps;
  HWY_DYNAMIC_DISPATCH(FindStep)(units, first, &inverse[0], &scale[0]);
  HWY_DYNAMIC_DISPATCH(FindStep)(units + first, form.dk - first, &inverse[1], &scale[1]);
  for (int t = 0; t < out.terms; ++t) {
    const int begin = form.TermBegin(t) * kPackedClass, end = form.TermEnd(t) * kPackedClass;
    HWY_DYNAMIC_DISPATCH(QuantizeSpan)
    (kClassOrder, units + begin, end - begin, inverse[PackedForm::TermStep(t)], to + begin,
     &out.q_sum[t * out.rows + row]);
  }
}

}  // namespace

void QuantizeQueries(const PackedForm& form, const float* q, int64_t rows, PackedQueries& out) {
  out.rows = rows;
  out.dk = form.dk;
  out.terms = form.Terms();
  out.steps = form.bits > 0 ? 1 : 2;
  out.q.resize(static_cast<size_t>(rows * form.dk));
  out.q_scale.resize(static_cast<size_t>(rows * out.steps));
  out.q_sum.resize(static_cast<size_t>(rows * out.terms));
  for (int64_t r = 0; r < rows; ++r)
    (form.bits > 0 ? QuantizeWords : QuantizeClasses)(form, q + r * form.dk, r, out);
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

}  // namespace kvring
#endif
