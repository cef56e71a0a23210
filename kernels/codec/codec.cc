// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec.h"

#include <algorithm>

namespace kvring {

void Codec::PrepareQuery(int layer, int head, const float* state, const float* raw_q, int64_t rows,
                         float* packed_q) const {
  // Most codecs decode keys into the domain that queries have after RoPE.
  if (raw_q != packed_q) std::copy_n(raw_q, rows * traits().dk, packed_q);
}

}  // namespace kvring
