// SPDX-License-Identifier: Apache-2.0
// F32, F16, BF16: numbers that stand alone.
#include "kernels/weights/formats.h"

namespace kvring::weights {

void DequantizeF32(const uint8_t* bytes, int64_t blocks, float* out) {
  if (blocks > 0) std::memcpy(out, bytes, static_cast<size_t>(blocks) * sizeof(float));
}

void DequantizeF16(const uint8_t* bytes, int64_t blocks, float* out) {
  for (int64_t i = 0; i < blocks; ++i) out[i] = LoadHalf(bytes + 2 * i);
}

void DequantizeBf16(const uint8_t* bytes, int64_t blocks, float* out) {
  for (int64_t i = 0; i < blocks; ++i) out[i] = BFloat16ToFloat(Load<BFloat16>(bytes + 2 * i));
}

}  // namespace kvring::weights
