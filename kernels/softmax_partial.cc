// SPDX-License-Identifier: Apache-2.0
// Distributed-attention spec 1: emptiness is decided by l == 0, the maximum is always subtracted, no finite mask constant.
#include "kernels/softmax_partial.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/merge_rows.h"

namespace kvring {

void MakeEmpty(const SoftmaxPartial& partial) {
  for (int64_t r = 0; r < partial.rows; ++r) {
    partial.m[r] = -std::numeric_limits<float>::infinity();
    partial.l[r] = 0.0f;
  }
  std::memset(partial.o, 0, sizeof(float) * partial.rows * partial.dv);
}

void Merge(const SoftmaxPartial& into, const SoftmaxPartial& from) { MergeRows(into, from); }

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
