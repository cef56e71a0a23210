// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/backward_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/backward_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

// Exponentials are summed in fp32 over this many elements, then in double: a vocabulary's sum keeps fp32's accuracy.
constexpr int64_t kSumPiece = 1024;

// y = g s u with s = sigmoid(g): dy/du = g s, dy/dg = u s (1 + g (1 - s)).
HWY_INLINE void SwiGluBackwardVec(F32V* g, F32V* u, F32V dy) {
  const F32 d;
  const F32V one = hn::Set(d, 1.0f);
  const F32V e = Exp2Vec(d, hn::Mul(*g, hn::Set(d, -kLog2E)));
  const F32V s = hn::Div(one, hn::Add(one, e));
  const F32V slope = hn::Mul(s, hn::MulAdd(*g, hn::Sub(one, s), one));
  const F32V du = hn::Mul(dy, hn::Mul(*g, s));
  *g = hn::Mul(hn::Mul(dy, *u), slope);
  *u = du;
}

void SwiGluBackwardSpanImpl(float* gate, float* up, const float* dy, int64_t n) {
  const F32 d;
  const int64_t lanes = hn::Lanes(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    F32V g = hn::LoadU(d, gate + i), u = hn::LoadU(d, up + i);
    SwiGluBackwardVec(&g, &u, hn::LoadU(d, dy + i));
    hn::StoreU(g, d, gate + i);
    hn::StoreU(u, d, up + i);
  }
  if (i == n) return;
  alignas(64) float rest[3][16] = {};
  const size_t bytes = static_cast<size_t>(n - i) * sizeof(float);
  std::memcpy(rest[0], gate + i, bytes);
  std::memcpy(rest[1], up + i, bytes);
  std::memcpy(rest[2], dy + i, bytes);
  F32V g = hn::Load(d, rest[0]), u = hn::Load(d, rest[1]);
  SwiGluBackwardVec(&g, &u, hn::Load(d, rest[2]));
  hn::Store(g, d, rest[0]);
  hn::Store(u, d, rest[1]);
  std::memcpy(gate + i, rest[0], bytes);
  std::memcpy(up + i, rest[1], bytes);
}

float MaxOf(const float* x, int64_t n) {
  const F32 d;
  const int64_t lanes = hn::Lanes(d);
  F32V max = hn::Set(d, x[0]);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) max = hn::Max(max, hn::LoadU(d, x + i));
  float most = hn::GetLane(hn::MaxOfLanes(d, max));
  for (; i < n; ++i) most = std::max(most, x[i]);
  return most;
}

// x[i] becomes 2^((x[i] - shift) log2 e); returns their sum, over 16 virtual lanes.
float ExpPiece(float* x, int64_t n, float shift) {
  const F32 d;
  const int64_t lanes = hn::Lanes(d), parts = 16 / lanes;
  const F32V base = hn::Set(d, shift), log2e = hn::Set(d, kLog2E);
  F32V sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int64_t p = 0; p < parts; ++p) {
      float* at = x + i + p * lanes;
      const F32V e = Exp2Vec(d, hn::Mul(hn::Sub(hn::LoadU(d, at), base), log2e));
      hn::StoreU(e, d, at);
      sum[p] = hn::Add(sum[p], e);
    }
  }
  float total = SumLanes16(sum);
  for (; i < n; ++i) {
    x[i] = Exp2((x[i] - shift) * kLog2E);
    total += x[i];
  }
  return total;
}

double SoftmaxInPlaceImpl(float* x, int64_t n, float weight) {
  const F32 d;
  const int64_t lanes = hn::Lanes(d);
  const float max = MaxOf(x, n);
  double sum = 0;
  for (int64_t i = 0; i < n; i += kSumPiece) {
    sum += ExpPiece(x + i, std::min(kSumPiece, n - i), max);
  }
  const float scale = static_cast<float>(weight / sum);
  const F32V s = hn::Set(d, scale);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), s), d, x + i);
  for (; i < n; ++i) x[i] *= scale;
  return max + std::log(sum);
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(SwiGluBackwardSpanImpl);
HWY_EXPORT(SoftmaxInPlaceImpl);

void SwiGluBackwardSpan(float* gate, float* up, const float* dy, int64_t n) {
  HWY_DYNAMIC_DISPATCH(SwiGluBackwardSpanImpl)(gate, up, dy, n);
}

double SoftmaxInPlace(float* x, int64_t n, float weight) {
  return HWY_DYNAMIC_DISPATCH(SoftmaxInPlaceImpl)(x, n, weight);
}

}  // namespace kvring
#endif
