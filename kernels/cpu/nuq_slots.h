// SPDX-License-Identifier: Apache-2.0
// Outliers of a page's fixed slots onto a decoded tile. Places and residuals of all slots are formed in registers, what is left for
// each is one addition: no branch looks at a slot. Private to kernels/.
#pragma once

#include <cstdint>

namespace kvring {

struct NuqSlotsArgs {
  const uint8_t* at = nullptr;  // u16 index (token * dim + channel) [slots], Half residual [slots]
  int slots = 0;
  int dim = 0;
  int tokens = 0;  // in use
  int64_t token_stride = 0, channel_stride = 0;
  float* tile = nullptr;
};

// tile[token * token_stride + channel * channel_stride] += residual, up to the first slot that is empty (residual zero) or whose token
// is not in use.
void AddNuqSlots(const NuqSlotsArgs& args);

}  // namespace kvring
