// SPDX-License-Identifier: Apache-2.0
// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0. A block holds 32 numbers: an fp16 scale d, in the _1 forms an fp16 offset m, in the
// 5-bit forms a 32-bit mask of fifth bits, then the codes. Byte j of 4-bit codes carries number j in its low and number
// j + 16 in its high half.
#include "kernels/weights/formats.h"

namespace kvring::weights {
namespace {

constexpr int kBlock = 32;
constexpr int kHalfBlock = 16;

// value = d * (code - zero) [+ m], codes of 4 bits, or of 5 with the mask of high bits.
struct Layout {
  int zero;       // code that stands for 0 in the symmetric forms
  bool offset;    // m follows d
  bool five_bit;  // the mask follows d (and m)
};

// One block: codes as they lie, 0 to 15 or 31.
template <Layout layout>
void ReadCodes(const uint8_t* bytes, int8_t* codes) {
  constexpr int kMaskAt = layout.offset ? 4 : 2;
  constexpr int kCodesAt = kMaskAt + (layout.five_bit ? 4 : 0);
  const uint32_t mask = layout.five_bit ? Load<uint32_t>(bytes + kMaskAt) : 0;
  for (int j = 0; j < kHalfBlock; ++j) {
    const uint8_t pair = bytes[kCodesAt + j];
    codes[j] = static_cast<int8_t>((pair & 15) | static_cast<int>((mask >> j) & 1) << 4);
    codes[j + kHalfBlock] =
        static_cast<int8_t>((pair >> 4) | static_cast<int>((mask >> (j + kHalfBlock)) & 1) << 4);
  }
}

// Codes of five bits leave their zero here, those of four keep it (CodeForm::zero).
template <Layout layout>
void Split(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales, float* offsets) {
  constexpr int kBytes = (layout.offset ? 4 : 2) + (layout.five_bit ? 4 : 0) + kHalfBlock;
  for (int64_t b = 0; b < blocks; ++b, bytes += kBytes, codes += kBlock) {
    scales[b] = LoadHalf(bytes);
    if (layout.offset) offsets[b] = LoadHalf(bytes + 2);
    ReadCodes<layout>(bytes, codes);
    if (!layout.five_bit) continue;
    for (int j = 0; j < kBlock; ++j) codes[j] = static_cast<int8_t>(codes[j] - layout.zero);
  }
}

template <Layout layout>
void Dequantize(const uint8_t* bytes, int64_t blocks, float* out) {
  constexpr int kMaskAt = layout.offset ? 4 : 2;
  constexpr int kCodesAt = kMaskAt + (layout.five_bit ? 4 : 0);
  for (int64_t b = 0; b < blocks; ++b, bytes += kCodesAt + kHalfBlock, out += kBlock) {
    const float d = LoadHalf(bytes);
    const float m = layout.offset ? LoadHalf(bytes + 2) : 0.0f;
    const uint32_t mask = layout.five_bit ? Load<uint32_t>(bytes + kMaskAt) : 0;
    for (int j = 0; j < kHalfBlock; ++j) {
      const uint8_t pair = bytes[kCodesAt + j];
      const int low = (pair & 15) | static_cast<int>((mask >> j) & 1) << 4;
      const int high = (pair >> 4) | static_cast<int>((mask >> (j + kHalfBlock)) & 1) << 4;
      const float x = d * static_cast<float>(low - layout.zero);
      const float y = d * static_cast<float>(high - layout.zero);
      // Without an offset nothing is added: -0 + 0 would lose the sign of a zero.
      out[j] = layout.offset ? x + m : x;
      out[j + kHalfBlock] = layout.offset ? y + m : y;
    }
  }
}

}  // namespace

void DequantizeQ40(const uint8_t* bytes, int64_t blocks, float* out) {
  Dequantize<Layout{8, false, false}>(bytes, blocks, out);
}

void DequantizeQ41(const uint8_t* bytes, int64_t blocks, float* out) {
  Dequantize<Layout{0, true, false}>(bytes, blocks, out);
}

void DequantizeQ50(const uint8_t* bytes, int64_t blocks, float* out) {
  Dequantize<Layout{16, false, true}>(bytes, blocks, out);
}

void DequantizeQ51(const uint8_t* bytes, int64_t blocks, float* out) {
  Dequantize<Layout{0, true, true}>(bytes, blocks, out);
}

void DequantizeQ80(const uint8_t* bytes, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, bytes += 2 + kBlock, out += kBlock) {
    const float d = LoadHalf(bytes);
    for (int j = 0; j < kBlock; ++j) {
      out[j] = static_cast<float>(static_cast<int8_t>(bytes[2 + j])) * d;
    }
  }
}

void SplitQ40(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales, float* offsets) {
  Split<Layout{8, false, false}>(bytes, blocks, codes, scales, offsets);
}

void SplitQ41(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales, float* offsets) {
  Split<Layout{0, true, false}>(bytes, blocks, codes, scales, offsets);
}

void SplitQ50(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales, float* offsets) {
  Split<Layout{16, false, true}>(bytes, blocks, codes, scales, offsets);
}

void SplitQ51(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales, float* offsets) {
  Split<Layout{0, true, true}>(bytes, blocks, codes, scales, offsets);
}

void SplitQ80(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales,
              float* /*offsets*/) {
  for (int64_t b = 0; b < blocks; ++b, bytes += 2 + kBlock, codes += kBlock) {
    scales[b] = LoadHalf(bytes);
    std::memcpy(codes, bytes + 2, kBlock);
  }
}

}  // namespace kvring::weights
