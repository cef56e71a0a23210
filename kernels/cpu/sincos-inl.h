// SPDX-License-Identifier: Apache-2.0
// SinCos (kernels/sincos.h) of a register of doubles: the same operations in the same order, so the same bits. Included once per
// Highway target.
#if defined(KVRING_CPU_SINCOS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRING_CPU_SINCOS_INL_H_
#undef KVRING_CPU_SINCOS_INL_H_
#else
#define KVRING_CPU_SINCOS_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

#if HWY_HAVE_FLOAT64
// c[0] + z (c[1] + z (c[2] + ...)), products and sums apart.
template <class D, class V, int kTerms>
HWY_INLINE V SeriesVec(D d, V z, const double (&c)[kTerms]) {
  namespace hn = hwy::HWY_NAMESPACE;
  V sum = hn::Set(d, c[kTerms - 1]);
#pragma GCC unroll 8
  for (int i = kTerms - 2; i >= 0; --i) sum = hn::Add(hn::Set(d, c[i]), hn::Mul(z, sum));
  return sum;
}

template <class D, class V>
HWY_INLINE void SinCosVec(D d, V x, V* sine, V* cosine) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToUnsigned<D> du;
  constexpr double kSine[] = {
      -1.0 / 6.0,        1.0 / 120.0,        -1.0 / 5040.0,          1.0 / 362880.0,
      -1.0 / 39916800.0, 1.0 / 6227020800.0, -1.0 / 1307674368000.0, 1.0 / 355687428096000.0};
  constexpr double kCosine[] = {-0.5,
                                1.0 / 24.0,
                                -1.0 / 720.0,
                                1.0 / 40320.0,
                                -1.0 / 3628800.0,
                                1.0 / 479001600.0,
                                -1.0 / 87178291200.0,
                                1.0 / 20922789888000.0};
  const V round = hn::Set(d, 0x1.8p52);
  const V shifted = hn::Add(hn::Mul(x, hn::Set(d, 0x1.45f306dc9c883p-1)), round);
  const V quadrant = hn::Sub(shifted, round);
  V r = hn::Sub(x, hn::Mul(quadrant, hn::Set(d, 0x1.921fb54p+0)));
  r = hn::Sub(r, hn::Mul(quadrant, hn::Set(d, 0x1.10b461p-30)));
  r = hn::Sub(r, hn::Mul(quadrant, hn::Set(d, 0x1.a62633145c06ep-58)));
  const V z = hn::Mul(r, r);
  const V s = hn::Add(r, hn::Mul(hn::Mul(r, z), SeriesVec(d, z, kSine)));
  const V c = hn::Add(hn::Set(d, 1.0), hn::Mul(z, SeriesVec(d, z, kCosine)));
  const auto low = hn::BitCast(du, shifted);
  const auto one = hn::Set(du, uint64_t{1});
  const auto odd =
      hn::MaskFromVec(hn::BitCast(d, hn::VecFromMask(du, hn::Ne(hn::And(low, one), hn::Zero(du)))));
  // Bit 1 of the quadrant (and of the next one) as a sign.
  *sine =
      hn::Xor(hn::IfThenElse(odd, c, s), hn::BitCast(d, hn::ShiftLeft<63>(hn::ShiftRight<1>(low))));
  *cosine = hn::Xor(hn::IfThenElse(odd, s, c),
                    hn::BitCast(d, hn::ShiftLeft<63>(hn::ShiftRight<1>(hn::Add(low, one)))));
}
#endif

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRING_CPU_SINCOS_INL_H_
