// SPDX-License-Identifier: Apache-2.0
// Distributed-attention spec 1: emptiness is decided by l == 0, the maximum is always subtracted, no finite mask constant.
#include "kernels/softmax_partial.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/exp2.h"

namespace kvring {
namespace {

// into = fa * into + fb * from, each product and the sum rounded on its own.
void Combine(float* into, float fa, const float* from, float fb, int64_t n) {
  for (int64_t i = 0; i < n; ++i) into[i] = fa * into[i] + fb * from[i];
}

}  // namespace

void MakeEmpty(const SoftmaxPartial& partial) {
  for (int64_t r = 0; r < partial.rows; ++r) {
    partial.m[r] = -std::numeric_limits<float>::infinity();
    partial.l[r] = 0.0f;
  }
  std::memset(partial.o, 0, sizeof(float) * partial.rows * partial.dv);
}

void Merge(const SoftmaxPartial& into, const SoftmaxPartial& from) {
  const int64_t dv = into.dv;
  for (int64_t r = 0; r < into.rows; ++r) {
    if (from.l[r] == 0.0f) continue;
    float* o = into.o + r * dv;
    if (into.l[r] == 0.0f) {
      into.m[r] = from.m[r];
      into.l[r] = from.l[r];
      std::memcpy(o, from.o + r * dv, sizeof(float) * dv);
      continue;
    }
    // Zero times either maximum turns a NaN or an infinity into a NaN, which a plain maximum could hide.
    const float a = into.m[r], b = from.m[r];
    const float m = (a > b ? a : b) + (0.0f * a + 0.0f * b);
    const float fa = Exp2(a - m), fb = Exp2(b - m);
    into.m[r] = m;
    into.l[r] = fa * into.l[r] + fb * from.l[r];
    Combine(o, fa, from.o + r * dv, fb, dv);
  }
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
