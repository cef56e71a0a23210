// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/nuq_ref.h"

#include <cstring>

#include "kernels/codec/bit_words.h"

namespace kvring {

void NuqRowsRef(const NuqCodesRef& codes, const float* numbers, const float* scale,
                const float* offset, float* out) {
  for (int64_t r = 0; r < codes.rows; ++r) {
    for (int64_t l = 0; l < codes.lanes; ++l) {
      const float scaled = scale[r] * numbers[CodeAt(codes.words, codes.lanes, codes.bits, r, l)];
      out[r * codes.lanes + l] = offset[r] + scaled;
    }
  }
}

void AddNuqSlotsRef(const NuqSlotsRef& slots, float* tile) {
  for (int i = 0; i < slots.slots; ++i) {
    uint16_t index;
    Half residual;
    std::memcpy(&index, slots.at + 2 * i, 2);
    std::memcpy(&residual, slots.at + 2 * (slots.slots + i), 2);
    const int token = index / slots.dim, channel = index % slots.dim;
    if ((residual & 0x7fffu) == 0 || token >= slots.tokens) return;
    tile[token * slots.token_stride + channel * slots.channel_stride] += HalfToFloat(residual);
  }
}

void RotateKeysRef(const PageAngles& angles, const float* base, float* tile) {
  const RopeTable& table = angles.table();
  const int64_t block = angles.block_tokens();
  for (int p = 0; p < table.planes(); ++p) {
    for (int64_t t = 0; t < block; ++t) {
      const float co = angles.Cosines()[p * block + t], so = angles.Sines()[p * block + t];
      const float c = base[2 * p] * co - base[2 * p + 1] * so;
      const float s = base[2 * p + 1] * co + base[2 * p] * so;
      float& a = tile[table.First(p) * block + t];
      float& b = tile[table.Second(p) * block + t];
      const float x = a, y = b;
      a = x * c - y * s;
      b = x * s + y * c;
    }
  }
}

}  // namespace kvring
