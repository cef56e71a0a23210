// SPDX-License-Identifier: Apache-2.0
// The vector form of exp2.h, and sums over 16 virtual lanes: their order is the same whatever the register width is.
// Included once per Highway target.
#include "kernels/cpu/exp2.h"

#if defined(KVRING_CPU_EXP2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRING_CPU_EXP2_INL_H_
#undef KVRING_CPU_EXP2_INL_H_
#else
#define KVRING_CPU_EXP2_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that a sum over 16 virtual lanes is whole registers on every target.
using F32 = hn::CappedTag<float, 16>;
using F32V = hn::Vec<F32>;

// P(f) of exp2.h.
template <class D, class V>
HWY_INLINE V Exp2Poly(D d, V f) {
  V p = hn::Set(d, kExp2Poly[5]);
  p = hn::MulAdd(p, f, hn::Set(d, kExp2Poly[4]));
  p = hn::MulAdd(p, f, hn::Set(d, kExp2Poly[3]));
  p = hn::MulAdd(p, f, hn::Set(d, kExp2Poly[2]));
  p = hn::MulAdd(p, f, hn::Set(d, kExp2Poly[1]));
  p = hn::MulAdd(p, f, hn::Set(d, kExp2Poly[0]));
  return hn::MulAdd(p, f, hn::Set(d, 1.0f));
}

// x below 127.5, or NaN.
template <class D, class V>
HWY_INLINE V Exp2VecBelow(D d, V x) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  // The same numbers: the instructions round as the magic number does, and scale by 2^n without loss where the result is
  // not zeroed.
  if constexpr (sizeof(x.raw) == 64) {
    const __m512 n = _mm512_roundscale_ps(x.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const V p = Exp2Poly(d, V{_mm512_sub_ps(x.raw, n)});
    const __mmask16 some = _mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(kExp2Low), _CMP_NLT_UQ);
    return V{_mm512_maskz_scalef_ps(some, p.raw, n)};
  }
#endif
  const hn::RebindToUnsigned<D> du;
  const V magic = hn::Set(d, kExp2Magic);
  const V shifted = hn::Add(x, magic);
  const V f = hn::Sub(x, hn::Sub(shifted, magic));
  const V p = Exp2Poly(d, f);
  const auto n = hn::Sub(hn::BitCast(du, shifted), hn::BitCast(du, magic));
  const auto biased = hn::Add(n, hn::Set(du, 127u));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(biased));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, kExp2Low)), hn::Mul(p, power));
}

// Exp2VecBelow of N registers, step by step for several of them: a processor sees too few instructions ahead to find the
// independent ones in N whole chains.
template <int N>
HWY_INLINE void Exp2Each(F32V* x) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  constexpr int kTogether = N <= 8 ? N : N / 2;  // registers: three each, and constants
  static_assert(N % kTogether == 0);
  const F32 d;
#pragma GCC unroll 2
  for (int first = 0; first < N; first += kTogether, x += kTogether) {
    F32V n[kTogether], f[kTogether], p[kTogether];
#pragma GCC unroll 8
    for (int i = 0; i < kTogether; ++i) {
      n[i] = F32V{_mm512_roundscale_ps(x[i].raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
      f[i] = hn::Sub(x[i], n[i]);
      p[i] = hn::MulAdd(hn::Set(d, kExp2Poly[5]), f[i], hn::Set(d, kExp2Poly[4]));
    }
#pragma GCC unroll 8
    for (int c = 3; c >= -1; --c) {
      const F32V add = hn::Set(d, c < 0 ? 1.0f : kExp2Poly[c < 0 ? 0 : c]);
#pragma GCC unroll 8
      for (int i = 0; i < kTogether; ++i) p[i] = hn::MulAdd(p[i], f[i], add);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kTogether; ++i) {
      const __mmask16 some = _mm512_cmp_ps_mask(x[i].raw, _mm512_set1_ps(kExp2Low), _CMP_NLT_UQ);
      x[i] = F32V{_mm512_maskz_scalef_ps(some, p[i].raw, n[i].raw)};
    }
  }
#else
  for (int i = 0; i < N; ++i) x[i] = Exp2VecBelow(F32(), x[i]);
#endif
}

template <class D, class V>
HWY_INLINE V Exp2Vec(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  const V y = Exp2VecBelow(d, x);
  const V infinity = hn::BitCast(d, hn::Set(du, 0x7f800000u));
  return hn::IfThenElse(hn::Ge(x, hn::Set(d, kExp2High)), infinity, y);
}

// The tree of SumLanes16 within a register.
template <class D, class V>
HWY_INLINE float SumHalves(D d, V x) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    return hn::GetLane(x);
  } else {
    const hn::Half<D> half;
    return SumHalves(half, hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)));
  }
}

// Sum of 16 virtual lanes held as 16 / Lanes(d) registers, as a balanced tree: lane i + lane i + 8, and so on.
HWY_INLINE float SumLanes16(const F32V* acc) {
#if !HWY_HAVE_SCALABLE
  constexpr size_t kRegisters = 16 / hn::MaxLanes(F32());
  if constexpr (kRegisters == 1) return SumHalves(F32(), acc[0]);
  if constexpr (kRegisters == 2) return SumHalves(F32(), hn::Add(acc[0], acc[1]));
  if constexpr (kRegisters == 4) {
    return SumHalves(F32(), hn::Add(hn::Add(acc[0], acc[2]), hn::Add(acc[1], acc[3])));
  }
#endif
  const F32 d;
  alignas(64) float t[16];
  for (size_t i = 0; i < 16 / hn::Lanes(d); ++i) hn::Store(acc[i], d, t + i * hn::Lanes(d));
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) t[i] += t[i + half];
  }
  return t[0];
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRING_CPU_EXP2_INL_H_
