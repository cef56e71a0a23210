// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/elementwise_rows.h"

#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

// Sum of squares: 16 chains of fused multiply-adds, then a tree; the rest of the row in order behind it.
HWY_INLINE float SumSquares(const float* x, int64_t n) {
  const F32 d;
  const int64_t lanes = hn::Lanes(d), parts = 16 / lanes;
  F32V acc[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int64_t p = 0; p < parts; ++p) {
      const F32V v = hn::LoadU(d, x + i + p * lanes);
      acc[p] = hn::MulAdd(v, v, acc[p]);
    }
  }
  float sum = SumLanes16(acc);
  for (; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

void RmsNormRowsImpl(const float* x, const float* weight, float epsilon, int64_t rows, int64_t n,
                     float* y) {
  const F32 d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    const float scale = 1.0f / std::sqrt(SumSquares(x, n) / static_cast<float>(n) + epsilon);
    const F32V s = hn::Set(d, scale);
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), s), hn::LoadU(d, weight + i)), d, y + i);
    }
    for (; i < n; ++i) y[i] = x[i] * scale * weight[i];
  }
}

// silu(g) * u = g * u / (1 + 2^(-g log2 e)). Where the power overflows the quotient is a zero, as it should be.
HWY_INLINE F32V SwiGluVec(F32V g, F32V u) {
  const F32 d;
  const F32V e = Exp2Vec(d, hn::Mul(g, hn::Set(d, -kLog2E)));
  return hn::Mul(hn::Div(g, hn::Add(hn::Set(d, 1.0f), e)), u);
}

void SwiGluSpanImpl(const float* gate, const float* up, int64_t n, float* y) {
  const F32 d;
  const int64_t lanes = hn::Lanes(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(SwiGluVec(hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, y + i);
  }
  if (i == n) return;
  // The rest through a buffer: an element's bits must not depend on where in the row it lies.
  alignas(64) float g[16] = {}, u[16] = {};
  for (int64_t j = i; j < n; ++j) g[j - i] = gate[j], u[j - i] = up[j];
  hn::Store(SwiGluVec(hn::Load(d, g), hn::Load(d, u)), d, g);
  for (int64_t j = i; j < n; ++j) y[j] = g[j - i];
}

// The largest first, then where it is: both are one pass of comparisons.
int64_t ArgMaxImpl(const float* x, int64_t n) {
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const F32V lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  F32V top[4] = {lowest, lowest, lowest, lowest};
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    for (int k = 0; k < 4; ++k) {
      const F32V v = hn::LoadU(d, x + i + k * lanes);
      top[k] = hn::IfThenElse(hn::Gt(v, top[k]), v, top[k]);
    }
  }
  float most =
      hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(top[0], top[1]), hn::Max(top[2], top[3]))));
  for (; i < n; ++i) most = x[i] > most ? x[i] : most;
  const F32V wanted = hn::Set(d, most);
  for (i = 0; i + lanes <= n; i += lanes) {
    const intptr_t at = hn::FindFirstTrue(d, hn::Eq(hn::LoadU(d, x + i), wanted));
    if (at >= 0) return i + at;
  }
  for (; i < n; ++i)
    if (x[i] == most) return i;
  return 0;  // nothing but NaN
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(ArgMaxImpl);
HWY_EXPORT(RmsNormRowsImpl);
HWY_EXPORT(SwiGluSpanImpl);

void RmsNormRows(const float* x, const float* weight, float epsilon, int64_t rows, int64_t n,
                 float* y) {
  HWY_DYNAMIC_DISPATCH(RmsNormRowsImpl)(x, weight, epsilon, rows, n, y);
}

int64_t ArgMaxSpan(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(ArgMaxImpl)(x, n); }

void SwiGluSpan(const float* gate, const float* up, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(SwiGluSpanImpl)(gate, up, n, y);
}

}  // namespace kvring
#endif
