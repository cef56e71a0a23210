// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/exact_tile.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/exact_tile.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using F16 = hn::Rebind<hwy::float16_t, F32>;

HWY_INLINE hn::Vec<F32> WidenAt(const Half* x) {
  return hn::PromoteTo(F32(), hn::LoadU(F16(), reinterpret_cast<const hwy::float16_t*>(x)));
}

void WidenHalvesImpl(const Half* x, int64_t n, float* y) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(WidenAt(x + i), d, y + i);
  for (; i < n; ++i) y[i] = HalfToFloat(x[i]);
}

// Products and sums are kept apart, as in RopeRotate.
void RotatePlane(const float* cos, const float* sin, const Half* xa, const Half* xb, int64_t count,
                 float* ya, float* yb) {
  const F32 d;
  for (int64_t t = 0; t < count; t += static_cast<int64_t>(hn::Lanes(d))) {
    const auto c = hn::LoadU(d, cos + t), s = hn::LoadU(d, sin + t);
    const auto a = WidenAt(xa + t), b = WidenAt(xb + t);
    hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), d, ya + t);
    hn::StoreU(hn::Add(hn::Mul(a, s), hn::Mul(b, c)), d, yb + t);
  }
}

void RotateHalvesImpl(const RopeTable& table, const float* angles, const Half* kt, int64_t count,
                      int64_t ld, float* out) {
  for (int p = 0; p < table.planes(); ++p) {
    const int64_t a = table.First(p) * ld, b = table.Second(p) * ld;
    const float* const cos = angles + 2 * p * ld;
    RotatePlane(cos, cos + ld, kt + a, kt + b, count, out + a, out + b);
  }
  for (int64_t i = 2 * table.planes(); i < table.head_dim; ++i) {
    WidenHalvesImpl(kt + i * ld, count, out + i * ld);
  }
}

#if !HWY_HAVE_SCALABLE
// 8 rows of a register of columns. Afterwards block b of register j has these rows of column 8 b + j.
template <class D>
HWY_INLINE void Turn8(D d, const Half* x, int64_t stride, hn::Vec<D> (&out)[8]) {
  const hn::Repartition<uint32_t, D> d32;
  const hn::Repartition<uint64_t, D> d64;
  using V = hn::Vec<D>;
  V row[8];
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) row[r] = hn::LoadU(d, x + r * stride);
  hn::Vec<decltype(d32)> pair[8];
#pragma GCC unroll 4
  for (int r = 0; r < 8; r += 2) {
    pair[r] = hn::BitCast(d32, hn::InterleaveLower(d, row[r], row[r + 1]));
    pair[r + 1] = hn::BitCast(d32, hn::InterleaveUpper(d, row[r], row[r + 1]));
  }
  hn::Vec<decltype(d64)>
      four[8];  // columns 2 k, 2 k + 1 of rows 0..3 in [2 k], of rows 4..7 in [2 k + 1]
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 2
    for (int side = 0; side < 2; ++side) {
      const auto x0 = pair[4 * half + side], x1 = pair[4 * half + 2 + side];
      four[4 * side + half] = hn::BitCast(d64, hn::InterleaveLower(d32, x0, x1));
      four[4 * side + 2 + half] = hn::BitCast(d64, hn::InterleaveUpper(d32, x0, x1));
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < 8; j += 2) {
    out[j] = hn::BitCast(d, hn::InterleaveLower(d64, four[j], four[j + 1]));
    out[j + 1] = hn::BitCast(d, hn::InterleaveUpper(d64, four[j], four[j + 1]));
  }
}

// Blocks of x to columns 16 apart.
template <class D>
HWY_INLINE void StorePairs(D d, hn::Vec<D> x, int64_t ld, Half* kt) {
  if constexpr (hn::MaxLanes(D()) == 16) {
    hn::StoreU(x, d, kt);
  } else {
    const hn::Half<D> half;
    hn::StoreU(hn::LowerHalf(half, x), half, kt);
    hn::StoreU(hn::UpperHalf(half, x), half, kt + 16 * ld);
  }
}

// 16 rows, as many columns as D has lanes.
template <class D>
HWY_INLINE void Turn16(D d, const Half* x, int64_t stride, Half* kt, int64_t ld) {
  hn::Vec<D> a[8], b[8];
  Turn8(d, x, stride, a);
  Turn8(d, x + 8 * stride, stride, b);
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    if constexpr (hn::MaxLanes(D()) == 8) {
      hn::StoreU(a[j], d, kt + j * ld);
      hn::StoreU(b[j], d, kt + j * ld + 8);
    } else {
      const auto even = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b[j]), a[j]);
      const auto odd = hn::OddEvenBlocks(b[j], hn::SwapAdjacentBlocks(a[j]));
      StorePairs(d, even, ld, kt + j * ld);
      StorePairs(d, odd, ld, kt + (8 + j) * ld);
    }
  }
}

// From column `first` on as far as whole registers of D reach; returns where it ended.
template <class D>
HWY_INLINE int64_t TurnColumns(D d, const Half* x, int64_t stride, int64_t first, int64_t columns,
                               Half* kt, int64_t ld) {
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));
  for (; first + kLanes <= columns; first += kLanes)
    Turn16(d, x + first, stride, kt + first * ld, ld);
  return first;
}
#endif

void TransposeSixteen(const Half* x, int64_t stride, int64_t columns, Half* kt, int64_t ld) {
  int64_t c = 0;
#if !HWY_HAVE_SCALABLE
  c = TurnColumns(hn::CappedTag<uint16_t, 32>(), x, stride, c, columns, kt, ld);
  c = TurnColumns(hn::CappedTag<uint16_t, 16>(), x, stride, c, columns, kt, ld);
  c = TurnColumns(hn::CappedTag<uint16_t, 8>(), x, stride, c, columns, kt, ld);
#endif
  for (; c < columns; ++c) {
    for (int64_t r = 0; r < kExactColumns; ++r) kt[c * ld + r] = x[r * stride + c];
  }
}

void TransposeHalvesImpl(const Half* x, int64_t stride, int64_t rows, int64_t columns, Half* kt,
                         int64_t ld) {
  int64_t r = 0;
  for (; r + kExactColumns <= rows; r += kExactColumns)
    TransposeSixteen(x + r * stride, stride, columns, kt + r, ld);
  if (r == rows) return;
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t t = 0; t < kExactColumns; ++t)
      kt[c * ld + r + t] = r + t < rows ? x[(r + t) * stride + c] : Half{0};
  }
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(TransposeHalvesImpl);
HWY_EXPORT(WidenHalvesImpl);
HWY_EXPORT(RotateHalvesImpl);

void TransposeHalves(const Half* x, int64_t stride, int64_t rows, int64_t columns, Half* kt,
                     int64_t ld) {
  HWY_DYNAMIC_DISPATCH(TransposeHalvesImpl)(x, stride, rows, columns, kt, ld);
}

void WidenHalves(const Half* x, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(WidenHalvesImpl)(x, n, y);
}

void RotateHalves(const RopeTable& table, const float* angles, const Half* kt, int64_t count,
                  int64_t ld, float* out) {
  HWY_DYNAMIC_DISPATCH(RotateHalvesImpl)(table, angles, kt, count, ld, out);
}

}  // namespace kvring
#endif
