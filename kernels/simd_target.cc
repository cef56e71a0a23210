// SPDX-License-Identifier: Apache-2.0
#include "kernels/simd_target.h"

#include "hwy/targets.h"

namespace kvring {

std::string SimdTarget() {
  const int64_t supported = hwy::SupportedTargets();
  return hwy::TargetName(supported & -supported);  // the lowest bit is the best target
}

}  // namespace kvring
