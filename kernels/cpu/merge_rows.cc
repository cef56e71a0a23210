// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/merge_rows.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/merge_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

// 2^a and 2^b, the same bits as the scalar form: in registers only where fused operations are one instruction.
HWY_INLINE void Powers(float a, float b, float* fa, float* fb) {
#if HWY_NATIVE_FMA
  const hn::CappedTag<float, 4> d;
  alignas(16) float x[4] = {a, b, 0.0f, 0.0f};
  for (size_t i = 0; i < 2; i += hn::Lanes(d)) hn::Store(Exp2Vec(d, hn::Load(d, x + i)), d, x + i);
  *fa = x[0], *fb = x[1];
#else
  *fa = Exp2(a), *fb = Exp2(b);
#endif
}

// into = fa * into + fb * from, each product and the sum rounded on its own.
HWY_INLINE void Combine(float* into, float fa, const float* from, float fb, int64_t n) {
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const F32V a = hn::Set(d, fa), b = hn::Set(d, fb);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const F32V sum =
        hn::Add(hn::Mul(a, hn::LoadU(d, into + i)), hn::Mul(b, hn::LoadU(d, from + i)));
    hn::StoreU(sum, d, into + i);
  }
  for (; i < n; ++i) into[i] = fa * into[i] + fb * from[i];
}

void MergeRowsImpl(const SoftmaxPartial& into, const SoftmaxPartial& from) {
  const int64_t dv = into.dv;
  for (int64_t r = 0; r < into.rows; ++r) {
    if (from.l[r] == 0.0f) continue;
    float* o = into.o + r * dv;
    if (into.l[r] == 0.0f) {
      into.m[r] = from.m[r];
      into.l[r] = from.l[r];
      std::memcpy(o, from.o + r * dv, sizeof(float) * dv);
      continue;
    }
    // Zero times either maximum turns a NaN or an infinity into a NaN, which a plain maximum could hide.
    const float a = into.m[r], b = from.m[r];
    const float m = (a > b ? a : b) + (0.0f * a + 0.0f * b);
    float fa, fb;
    Powers(a - m, b - m, &fa, &fb);
    into.m[r] = m;
    into.l[r] = fa * into.l[r] + fb * from.l[r];
    Combine(o, fa, from.o + r * dv, fb, dv);
  }
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(MergeRowsImpl);

void MergeRows(const SoftmaxPartial& into, const SoftmaxPartial& from) {
  HWY_DYNAMIC_DISPATCH(MergeRowsImpl)(into, from);
}

}  // namespace kvring
#endif
