// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/quantize_rows.h"

#include <bit>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantize_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;

// Largest magnitude as bits: integers order magnitudes as floats do, and a NaN is above infinity.
HWY_INLINE uint32_t LargestBits(const float* x, int64_t n) {
  const F f;
  const hn::RebindToUnsigned<F> u;
  const int64_t lanes = hn::Lanes(f);
  auto most = hn::Zero(u);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    most = hn::Max(most, hn::BitCast(u, hn::Abs(hn::LoadU(f, x + i))));
  uint32_t top = hn::GetLane(hn::MaxOfLanes(u, most));
  for (; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
    top = bits > top ? bits : top;
  }
  return top;
}

// Magnitudes are at most 127 (1 + 2 u), so the rounded ones fit.
HWY_INLINE void QuantizeRow(const float* x, int64_t n, float inverse, int8_t* q) {
  const F f;
  const hn::Rebind<int8_t, F> d8;
  const int64_t lanes = hn::Lanes(f);
  const auto by = hn::Set(f, inverse);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(hn::Mul(hn::LoadU(f, x + i), by))), d8, q + i);
  }
  for (; i < n; ++i) q[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
}

void QuantizeRowsImpl(const float* x, int64_t rows, int64_t n, int8_t* q, float* scales) {
  for (int64_t r = 0; r < rows; ++r, x += n, q += n) {
    const float most = std::bit_cast<float>(LargestBits(x, n));
    if (std::isfinite(most)) {
      scales[r] = most / 127.0f;
      // A row so small that the inverse overflows counts as zeros: below 1e-36 nothing is lost that fp32 would show.
      const float inverse = most > 1e-36f ? 127.0f / most : 0.0f;
      QuantizeRow(x, n, inverse, q);
    } else {
      scales[r] = NAN;
      for (int64_t i = 0; i < n; ++i) q[i] = 0;
    }
  }
}

void ScaleSumsImpl(const int32_t* sums, int64_t rows, int64_t columns, const float* row_scales,
                   const float* column_scales, float* y, int64_t ldy) {
  const F f;
  const hn::RebindToSigned<F> i32;
  const int64_t lanes = hn::Lanes(f);
  for (int64_t r = 0; r < rows; ++r, sums += columns, y += ldy) {
    const auto row = hn::Set(f, row_scales[r]);
    int64_t c = 0;
    for (; c + lanes <= columns; c += lanes) {
      const auto scale = hn::Mul(row, hn::LoadU(f, column_scales + c));
      hn::StoreU(hn::Mul(hn::ConvertTo(f, hn::LoadU(i32, sums + c)), scale), f, y + c);
    }
    for (; c < columns; ++c)
      y[c] = static_cast<float>(sums[c]) * (row_scales[r] * column_scales[c]);
  }
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(QuantizeRowsImpl);
HWY_EXPORT(ScaleSumsImpl);

void QuantizeRows(const float* x, int64_t rows, int64_t n, int8_t* q, float* scales) {
  HWY_DYNAMIC_DISPATCH(QuantizeRowsImpl)(x, rows, n, q, scales);
}

void ScaleSums(const int32_t* sums, int64_t rows, int64_t columns, const float* row_scales,
               const float* column_scales, float* y, int64_t ldy) {
  HWY_DYNAMIC_DISPATCH(ScaleSumsImpl)(sums, rows, columns, row_scales, column_scales, y, ldy);
}

}  // namespace kvring
#endif
