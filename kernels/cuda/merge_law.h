// SPDX-License-Identifier: Apache-2.0
// The law of kernels/softmax_partial.h for one row, as host and device code: the GPU kernel runs it, and a host test can
// check it on a machine without a GPU.
#pragma once

#include <cmath>

#if defined(__CUDACC__)
#define KVRING_HOST_DEVICE __host__ __device__
#else
#define KVRING_HOST_DEVICE
#endif

namespace kvring::cuda {

// What merging row `from` into row `into` does: the new m and l, and the factors of both o. keep: nothing changes;
// replace: the row is copied. These two are apart from the factors so that an empty row changes no bit.
struct RowMerge {
  float m, l;
  float into_scale, from_scale;
  bool keep, replace;
};

KVRING_HOST_DEVICE inline RowMerge MergeRow(float into_m, float into_l, float from_m,
                                            float from_l) {
  if (from_l == 0.0f) return {into_m, into_l, 1.0f, 0.0f, true, false};
  if (into_l == 0.0f) return {from_m, from_l, 0.0f, 1.0f, false, true};
  // Not fmaxf, which would hide a NaN in either maximum.
  const float m = into_m > from_m ? into_m : from_m + 0.0f * into_m;
  const float into_scale = exp2f(into_m - m);
  const float from_scale = exp2f(from_m - m);
  return {m, into_scale * into_l + from_scale * from_l, into_scale, from_scale, false, false};
}

}  // namespace kvring::cuda
