// SPDX-License-Identifier: Apache-2.0
#define HWY_WANT_AVX3_DL  // as where kernels ask for it

#include "kernels/simd_target.h"

#include "hwy/targets.h"

namespace kvring {

std::string SimdTarget() {
  // What this build has, too: with sanitizers it is one instruction set alone.
  const int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(supported & -supported);  // the lowest bit is the best target
}

}  // namespace kvring
