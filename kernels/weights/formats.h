// SPDX-License-Identifier: Apache-2.0
// Dequantizers behind the format table; only weight_format.cc and the families' files include this. Each writes the
// products and sums in the order that GGML's reference defines, so that results are its results bit for bit.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/half.h"

namespace kvring::weights {

// Model files are little-endian, and numbers are copied out of them as they lie.
static_assert(std::endian::native == std::endian::little,
              "a big-endian host needs byte swaps here");

template <typename T>
T Load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

inline float LoadHalf(const uint8_t* bytes) { return HalfToFloat(Load<Half>(bytes)); }

// plain.cc: one number a block.
void DequantizeF32(const uint8_t* bytes, int64_t blocks, float* out);
void DequantizeF16(const uint8_t* bytes, int64_t blocks, float* out);
void DequantizeBf16(const uint8_t* bytes, int64_t blocks, float* out);

// round_quants.cc: 32 numbers a block under one scale, with an offset in the _1 forms.
void DequantizeQ40(const uint8_t* bytes, int64_t blocks, float* out);
void DequantizeQ41(const uint8_t* bytes, int64_t blocks, float* out);
void DequantizeQ50(const uint8_t* bytes, int64_t blocks, float* out);
void DequantizeQ51(const uint8_t* bytes, int64_t blocks, float* out);
void DequantizeQ80(const uint8_t* bytes, int64_t blocks, float* out);

// Codes, scales and offsets apart (CodeForm).
void SplitQ40(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales, float* offsets);
void SplitQ41(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales, float* offsets);
void SplitQ50(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales, float* offsets);
void SplitQ51(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales, float* offsets);
void SplitQ80(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales, float* offsets);

// k_quants.cc: 256 numbers a block, in sub-blocks with small integer scales.
void DequantizeQ4K(const uint8_t* bytes, int64_t blocks, float* out);
void DequantizeQ5K(const uint8_t* bytes, int64_t blocks, float* out);
void DequantizeQ6K(const uint8_t* bytes, int64_t blocks, float* out);
void SplitQ4K(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales, float* offsets);
void SplitQ5K(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales, float* offsets);
void SplitQ6K(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales, float* offsets);

}  // namespace kvring::weights
