// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic on the bits, as in half.h, a register at a time: the hardware's own conversions treat NaN otherwise.
#include "kernels/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/convert.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using U = hn::RebindToUnsigned<F>;
using I = hn::RebindToSigned<F>;
using U16 = hn::Rebind<uint16_t, F>;
using UV = hn::Vec<U>;

HWY_INLINE hn::Vec<F> FromHalf(hn::Vec<U16> h) {
  const F f;
  const U u;
  const UV wide = hn::PromoteTo(u, h);
  const UV sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(u, 0x8000u)));
  const UV rest = hn::And(wide, hn::Set(u, 0x7fffu));
  const UV normal = hn::Add(hn::ShiftLeft<13>(rest), hn::Set(u, 112u << 23));
  const UV special =
      hn::Or(hn::ShiftLeft<13>(hn::And(rest, hn::Set(u, 0x3ffu))), hn::Set(u, 0x7f800000u));
  const auto small = hn::Mul(hn::ConvertTo(f, hn::BitCast(I(), rest)), hn::Set(f, 0x1p-24f));
  const auto is_special = hn::Gt(rest, hn::Set(u, 0x7bffu));
  const auto is_small = hn::Lt(rest, hn::Set(u, 0x0400u));
  const UV size =
      hn::IfThenElse(is_special, special, hn::IfThenElse(is_small, hn::BitCast(u, small), normal));
  return hn::BitCast(f, hn::Or(size, sign));
}

// Half bits in the low half of each lane.
HWY_INLINE UV ToHalf(hn::Vec<F> x) {
  const F f;
  const U u;
  const UV bits = hn::BitCast(u, x);
  const UV sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 0x8000u));
  const UV size = hn::And(bits, hn::Set(u, 0x7fffffffu));
  const auto half = hn::Set(f, 0.5f);
  const UV small =
      hn::Sub(hn::BitCast(u, hn::Add(hn::BitCast(f, size), half)), hn::BitCast(u, half));
  const UV odd = hn::And(hn::ShiftRight<13>(size), hn::Set(u, 1u));
  const UV rounded = hn::Add(hn::Add(size, hn::Set(u, 0xfffu)), odd);
  const UV normal = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(u, 112u << 23)));
  UV out = hn::IfThenElse(hn::Lt(size, hn::Set(u, 0x38800000u)), small, normal);
  out = hn::IfThenElse(hn::Gt(size, hn::Set(u, 0x477fffffu)), hn::Set(u, 0x7c00u), out);
  out = hn::IfThenElse(hn::Gt(size, hn::Set(u, 0x7f800000u)), hn::Set(u, 0x7e00u), out);
  return hn::Or(out, sign);
}

HWY_INLINE UV ToHalfSaturated(hn::Vec<F> x) {
  const F f;
  // The comparisons are false for NaN, which so passes.
  const auto high = hn::Set(f, 65504.0f), low = hn::Set(f, -65504.0f);
  return ToHalf(hn::IfThenElse(hn::Gt(x, high), high, hn::IfThenElse(hn::Lt(x, low), low, x)));
}

HWY_INLINE hn::Vec<F> FromBFloat16(hn::Vec<U16> b) {
  return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(U(), b)));
}

HWY_INLINE UV ToBFloat16(hn::Vec<F> x) {
  const U u;
  const UV bits = hn::BitCast(u, x);
  const UV odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1u));
  const UV rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(u, 0x7fffu)), odd));
  const UV nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(u, 0x40u));
  const auto is_nan = hn::Gt(hn::And(bits, hn::Set(u, 0x7fffffffu)), hn::Set(u, 0x7f800000u));
  return hn::IfThenElse(is_nan, nan, rounded);
}

// Whole registers, then the rest through one register of its own.
template <class Function>
HWY_INLINE void Widen(const uint16_t* x, int64_t n, float* y, const Function& function) {
  const U16 d16;
  const F f;
  const int64_t lanes = hn::Lanes(f);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(function(hn::LoadU(d16, x + i)), f, y + i);
  if (i == n) return;
  uint16_t in[64] = {};
  float out[64];
  for (int64_t j = i; j < n; ++j) in[j - i] = x[j];
  hn::StoreU(function(hn::LoadU(d16, in)), f, out);
  for (int64_t j = i; j < n; ++j) y[j] = out[j - i];
}

template <class Function>
HWY_INLINE void Narrow(const float* x, int64_t n, uint16_t* y, const Function& function) {
  const U16 d16;
  const F f;
  const int64_t lanes = hn::Lanes(f);
  const auto convert = [&](const float* from, uint16_t* to) HWY_ATTR {
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(I(), function(hn::LoadU(f, from)))), d16, to);
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) convert(x + i, y + i);
  if (i == n) return;
  float in[64] = {};
  uint16_t out[64];
  for (int64_t j = i; j < n; ++j) in[j - i] = x[j];
  convert(in, out);
  for (int64_t j = i; j < n; ++j) y[j] = out[j - i];
}

void HalfToFloatImpl(const Half* x, int64_t n, float* y) {
  Widen(x, n, y, [](hn::Vec<U16> h) HWY_ATTR { return FromHalf(h); });
}
void FloatToHalfImpl(const float* x, int64_t n, Half* y) {
  Narrow(x, n, y, [](hn::Vec<F> v) HWY_ATTR { return ToHalf(v); });
}
void FloatToHalfSaturatedImpl(const float* x, int64_t n, Half* y) {
  Narrow(x, n, y, [](hn::Vec<F> v) HWY_ATTR { return ToHalfSaturated(v); });
}
void BFloat16ToFloatImpl(const BFloat16* x, int64_t n, float* y) {
  Widen(x, n, y, [](hn::Vec<U16> b) HWY_ATTR { return FromBFloat16(b); });
}
void FloatToBFloat16Impl(const float* x, int64_t n, BFloat16* y) {
  Narrow(x, n, y, [](hn::Vec<F> v) HWY_ATTR { return ToBFloat16(v); });
}

// 4 x 4 of floats in registers of 128 bits, which every target has.
HWY_INLINE void Transpose4(const float* x, int64_t ldx, float* y, int64_t ldy) {
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<double, 2> dd;
  const auto r0 = hn::LoadU(d, x), r1 = hn::LoadU(d, x + ldx);
  const auto r2 = hn::LoadU(d, x + 2 * ldx), r3 = hn::LoadU(d, x + 3 * ldx);
  const auto a = hn::BitCast(dd, hn::InterleaveLower(d, r0, r1)),
             b = hn::BitCast(dd, hn::InterleaveLower(d, r2, r3));
  const auto c = hn::BitCast(dd, hn::InterleaveUpper(d, r0, r1)),
             e = hn::BitCast(dd, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, a, b)), d, y);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, a, b)), d, y + ldy);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, c, e)), d, y + 2 * ldy);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, c, e)), d, y + 3 * ldy);
}

void TransposeImpl(const float* x, int64_t rows, int64_t columns, float* y) {
  const int64_t whole_rows = rows / 4 * 4, whole_columns = columns / 4 * 4;
  for (int64_t c = 0; c < whole_columns; c += 4) {
    for (int64_t r = 0; r < whole_rows; r += 4)
      Transpose4(x + r * columns + c, columns, y + c * rows + r, rows);
  }
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = c < whole_columns ? whole_rows : 0; r < rows; ++r)
      y[c * rows + r] = x[r * columns + c];
  }
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(HalfToFloatImpl);
HWY_EXPORT(FloatToHalfImpl);
HWY_EXPORT(FloatToHalfSaturatedImpl);
HWY_EXPORT(BFloat16ToFloatImpl);
HWY_EXPORT(FloatToBFloat16Impl);
HWY_EXPORT(TransposeImpl);

void HalfToFloat(const Half* x, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(HalfToFloatImpl)(x, n, y);
}
void FloatToHalf(const float* x, int64_t n, Half* y) {
  HWY_DYNAMIC_DISPATCH(FloatToHalfImpl)(x, n, y);
}
void FloatToHalfSaturated(const float* x, int64_t n, Half* y) {
  HWY_DYNAMIC_DISPATCH(FloatToHalfSaturatedImpl)(x, n, y);
}
void BFloat16ToFloat(const BFloat16* x, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(BFloat16ToFloatImpl)(x, n, y);
}
void FloatToBFloat16(const float* x, int64_t n, BFloat16* y) {
  HWY_DYNAMIC_DISPATCH(FloatToBFloat16Impl)(x, n, y);
}
void Transpose(const float* x, int64_t rows, int64_t columns, float* y) {
  HWY_DYNAMIC_DISPATCH(TransposeImpl)(x, rows, columns, y);
}

}  // namespace kvring
#endif
