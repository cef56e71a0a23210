// SPDX-License-Identifier: Apache-2.0
// Distributed-attention spec 1: emptiness is decided by l == 0, the maximum is always subtracted, no finite mask constant.
#include "kernels/softmax_partial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/softmax_partial.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

// Rows whose factors are formed together.
constexpr int64_t kMergeRows = 16;

// into = fa * into + fb * from, each product and the sum rounded on its own.
HWY_INLINE void Combine(float* into, float fa, const float* from, float fb, int64_t n) {
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const F32V a = hn::Mul(hn::Set(d, fa), hn::LoadU(d, into + i));
    hn::StoreU(hn::Add(a, hn::Mul(hn::Set(d, fb), hn::LoadU(d, from + i))), d, into + i);
  }
  for (; i < n; ++i) into[i] = fa * into[i] + fb * from[i];
}

// m, fa, fb of kMergeRows rows with maxima a and b; what empty rows get is not used.
HWY_INLINE void Factors(const float* a, const float* b, float* m, float* fa, float* fb) {
  const F32 d;
  const F32V zero = hn::Zero(d);
  for (int64_t i = 0; i < kMergeRows; i += static_cast<int64_t>(hn::Lanes(d))) {
    const F32V x = hn::LoadU(d, a + i), y = hn::LoadU(d, b + i);
    // Zero times either maximum turns a NaN or an infinity into a NaN, which a plain maximum could hide.
    const F32V most = hn::IfThenElse(hn::Gt(x, y), x, y);
    const F32V sum = hn::Add(most, hn::Add(hn::Mul(zero, x), hn::Mul(zero, y)));
    hn::StoreU(sum, d, m + i);
    hn::StoreU(Exp2VecBelow(d, hn::Sub(x, sum)), d, fa + i);
    hn::StoreU(Exp2VecBelow(d, hn::Sub(y, sum)), d, fb + i);
  }
}

void MergeImpl(const SoftmaxPartial& into, const SoftmaxPartial& from) {
  const int64_t dv = into.dv;
  float a[kMergeRows] = {}, b[kMergeRows] = {}, m[kMergeRows], fa[kMergeRows], fb[kMergeRows];
  for (int64_t first = 0; first < into.rows; first += kMergeRows) {
    const int64_t here = std::min(kMergeRows, into.rows - first);
    std::copy_n(into.m + first, here, a);
    std::copy_n(from.m + first, here, b);
    Factors(a, b, m, fa, fb);
    for (int64_t i = 0; i < here; ++i) {
      const int64_t r = first + i;
      if (from.l[r] == 0.0f) continue;
      if (into.l[r] == 0.0f) {
        into.m[r] = from.m[r];
        into.l[r] = from.l[r];
        std::copy_n(from.o + r * dv, dv, into.o + r * dv);
        continue;
      }
      into.m[r] = m[i];
      into.l[r] = fa[i] * into.l[r] + fb[i] * from.l[r];
      Combine(into.o + r * dv, fa[i], from.o + r * dv, fb[i], dv);
    }
  }
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(MergeImpl);

void MakeEmpty(const SoftmaxPartial& partial) {
  for (int64_t r = 0; r < partial.rows; ++r) {
    partial.m[r] = -std::numeric_limits<float>::infinity();
    partial.l[r] = 0.0f;
  }
  std::memset(partial.o, 0, sizeof(float) * partial.rows * partial.dv);
}

void Merge(const SoftmaxPartial& into, const SoftmaxPartial& from) {
  HWY_DYNAMIC_DISPATCH(MergeImpl)(into, from);
}

bool Finalize(const SoftmaxPartial& partial, float* out) {
  bool ok = true;
  for (int64_t r = 0; r < partial.rows; ++r) {
    const float l = partial.l[r];
    const float* o = partial.o + r * partial.dv;
    float* y = out + r * partial.dv;
    bool good = l > 0.0f && std::isfinite(l) && std::isfinite(partial.m[r]);
    for (int64_t i = 0; i < partial.dv; ++i) good = good && std::isfinite(o[i]);
    for (int64_t i = 0; i < partial.dv; ++i) y[i] = good ? o[i] / l : 0.0f;
    ok = ok && good;
  }
  return ok;
}

int64_t FindNonFinite(const SoftmaxPartial& partial) {
  for (int64_t r = 0; r < partial.rows; ++r) {
    if (!std::isfinite(partial.l[r])) return r;
    if (partial.l[r] != 0.0f && !std::isfinite(partial.m[r])) return r;
  }
  return -1;
}

}  // namespace kvring
#endif  // HWY_ONCE
