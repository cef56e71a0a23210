// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope.h"

#include <algorithm>
#include <cmath>

#include "kernels/sincos.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_HAVE_FLOAT64
// SinCos of some planes at once. Every step is one rounding, as there: the same bits.
HWY_INLINE void SinCosAt(const double* inv_freq, double position, double scale, float* cos,
                         float* sin) {
  const hn::CappedTag<double, 8> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<float, decltype(d)> df;
  const auto set = [&](double x) HWY_ATTR { return hn::Set(d, x); };
  const auto x = hn::Mul(set(position), hn::LoadU(d, inv_freq));
  const auto shifted = hn::Add(hn::Mul(x, set(kSinCosTwoOverPi)), set(kSinCosRound));
  const auto quadrant = hn::Sub(shifted, set(kSinCosRound));
  auto r = x;
  for (double part : kSinCosHalfPi) r = hn::Sub(r, hn::Mul(quadrant, set(part)));
  const auto z = hn::Mul(r, r);
  auto s = set(kSineSeries[0]), c = set(kCosineSeries[0]);
  for (int i = 1; i < 8; ++i) {
    s = hn::Add(set(kSineSeries[i]), hn::Mul(z, s));
    c = hn::Add(set(kCosineSeries[i]), hn::Mul(z, c));
  }
  const auto sine = hn::Add(r, hn::Mul(hn::Mul(r, z), s));
  const auto cosine = hn::Add(set(1.0), hn::Mul(z, c));
  const auto low = hn::BitCast(du, shifted);
  const auto one = hn::Set(du, 1), two = hn::Set(du, 2);
  const auto odd = hn::RebindMask(d, hn::Eq(hn::And(low, one), one));
  const auto sign = [&](auto bits)
                        HWY_ATTR { return hn::BitCast(d, hn::ShiftLeft<62>(hn::And(bits, two))); };
  const auto first = hn::Xor(hn::IfThenElse(odd, cosine, sine), sign(low));
  const auto second = hn::Xor(hn::IfThenElse(odd, sine, cosine), sign(hn::Add(low, one)));
  hn::StoreU(hn::DemoteTo(df, hn::Mul(second, set(scale))), df, cos);
  hn::StoreU(hn::DemoteTo(df, hn::Mul(first, set(scale))), df, sin);
}
#endif

void RopeAnglesImpl(const RopeTable& table, int64_t position, float* cos_sin) {
  const int planes = table.planes();
  const double n = static_cast<double>(position);
  const double scale = table.attention_scale;
  int p = 0;
#if HWY_HAVE_FLOAT64
  const int lanes = static_cast<int>(hn::Lanes(hn::CappedTag<double, 8>()));
  for (; p + lanes <= planes; p += lanes) {
    float cos[8], sin[8];
    SinCosAt(table.inv_freq.data() + p, n, scale, cos, sin);
    for (int i = 0; i < lanes; ++i) {
      cos_sin[2 * (p + i)] = cos[i];
      cos_sin[2 * (p + i) + 1] = sin[i];
    }
  }
#endif
  for (; p < planes; ++p) {
    const SinCosResult angle = SinCos(n * table.inv_freq[p]);
    cos_sin[2 * p] = static_cast<float>(angle.cos * scale);
    cos_sin[2 * p + 1] = static_cast<float>(angle.sin * scale);
  }
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

RopeTable MakeRopeTable(RopePairing pairing, int head_dim, int rotary, double base,
                        const std::vector<float>& factors) {
  RopeTable table;
  table.pairing = pairing;
  table.head_dim = head_dim;
  table.inv_freq.resize(rotary / 2);
  for (int i = 0; i < rotary / 2; ++i) {
    const double frequency = std::pow(base, -2.0 * i / rotary);
    table.inv_freq[i] = factors.empty() ? frequency : frequency / factors[i];
  }
  return table;
}

HWY_EXPORT(RopeAnglesImpl);

void RopeAngles(const RopeTable& table, int64_t position, float* cos_sin) {
  HWY_DYNAMIC_DISPATCH(RopeAnglesImpl)(table, position, cos_sin);
}

namespace {

// Rotates planes whose channels are `first + p * step` and `second + p * step`; `turn` is +1 or -1.
void RotatePlanes(int planes, int step, int second, float turn, float gain, const float* cos_sin,
                  float* x) {
  for (int p = 0; p < planes; ++p) {
    const float c = cos_sin[2 * p] * gain, s = cos_sin[2 * p + 1] * (turn * gain);
    float& a = x[p * step];
    float& b = x[p * step + second];
    const float a0 = a, b0 = b;
    a = a0 * c - b0 * s;
    b = a0 * s + b0 * c;
  }
}

void Rotate(const RopeTable& table, const float* cos_sin, float turn, float gain, float* x) {
  if (table.pairing == RopePairing::kInterleaved) {
    RotatePlanes(table.planes(), 2, 1, turn, gain, cos_sin, x);
  } else {
    RotatePlanes(table.planes(), 1, table.planes(), turn, gain, cos_sin, x);
  }
}

}  // namespace

void RopeRotate(const RopeTable& table, const float* cos_sin, float* x) {
  Rotate(table, cos_sin, 1.0f, 1.0f, x);
}

void RopeRotateBack(const RopeTable& table, const float* cos_sin, float* x) {
  // cos_sin carries the scale once; the inverse has to divide by it twice.
  const float scale = table.attention_scale;
  Rotate(table, cos_sin, -1.0f, 1.0f / (scale * scale), x);
}

}  // namespace kvring
#endif  // HWY_ONCE
