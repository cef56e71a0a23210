// SPDX-License-Identifier: Apache-2.0
// The rotation of planes of a page of keys, a register of slots at a time. Products and sums are kept apart (no fused operations): the
// same bits on every instruction set. Included once per Highway target.
#if defined(KVRING_CPU_TURN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRING_CPU_TURN_INL_H_
#undef KVRING_CPU_TURN_INL_H_
#else
#define KVRING_CPU_TURN_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

using TurnD = hwy::HWY_NAMESPACE::CappedTag<float, 16>;
using TurnV = hwy::HWY_NAMESPACE::Vec<TurnD>;

// Compilers load an operand anew for each instruction that uses it; where loads are many, once is better.
HWY_INLINE TurnV LoadOnce(const float* from) {
  TurnV x = hwy::HWY_NAMESPACE::LoadU(TurnD(), from);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  asm("" : "+v"(x.raw));
#endif
  return x;
}

// Cosines and sines of base + offset (angle addition).
struct Turn {
  TurnV c, s;
  HWY_INLINE Turn(TurnV base_cos, TurnV base_sin, const float* cos, const float* sin) {
    namespace hn = hwy::HWY_NAMESPACE;
    const TurnV co = LoadOnce(cos), so = LoadOnce(sin);
    c = hn::Sub(hn::Mul(base_cos, co), hn::Mul(base_sin, so));
    s = hn::Add(hn::Mul(base_sin, co), hn::Mul(base_cos, so));
  }
  // a, b = the plane (x, y) turned.
  HWY_INLINE void Store(TurnV x, TurnV y, float* a, float* b) const {
    namespace hn = hwy::HWY_NAMESPACE;
    hn::StoreU(hn::Sub(hn::Mul(x, c), hn::Mul(y, s)), TurnD(), a);
    hn::StoreU(hn::Add(hn::Mul(x, s), hn::Mul(y, c)), TurnD(), b);
  }
};

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRING_CPU_TURN_INL_H_
