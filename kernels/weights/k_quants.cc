// SPDX-License-Identifier: Apache-2.0
// Q4_K, Q5_K, Q6_K: super-blocks of 256 numbers. In the 4- and 5-bit forms 8 sub-blocks of 32 have a 6-bit scale and a
// 6-bit minimum each, all under two fp16 numbers d and dmin; in the 6-bit form 16 sub-blocks of 16 have an int8 scale.
#include "kernels/weights/formats.h"

namespace kvring::weights {
namespace {

constexpr int kSuper = 256;
constexpr int kSub = 32;
constexpr int kScaleBytes = 12;

struct ScaleMin {
  int scale, min;
};

// Eight pairs of 6-bit numbers in 12 bytes: pairs 0-3 lie in the low 6 bits of bytes 0-3 (scales) and 4-7 (minima);
// pairs 4-7 have their low 4 bits in bytes 8-11 and their high 2 bits above the earlier pairs.
ScaleMin UnpackScaleMin(const uint8_t* packed, int i) {
  if (i < 4) return {packed[i] & 63, packed[i + 4] & 63};
  return {(packed[i + 4] & 15) | (packed[i - 4] >> 6) << 4, (packed[i + 4] >> 4) | (packed[i] >> 6)
                                                                                       << 4};
}

// One super-block's sub-block i. Its numbers are scale * code - min.
struct Sub {
  float scale, min;
};

// high_bits is null for 4-bit codes. 32 bytes of codes hold two sub-blocks, low halves first; bit i of high_bits[j] is the
// fifth bit of number j of sub-block i.
Sub ReadSub(const uint8_t* header, const uint8_t* high_bits, const uint8_t* codes, int i,
            int8_t* out) {
  const ScaleMin sm = UnpackScaleMin(header + 4, i);
  const uint8_t* pair = codes + (i / 2) * kSub;
  const int shift = 4 * (i % 2);
  for (int j = 0; j < kSub; ++j) {
    const int fifth = high_bits == nullptr ? 0 : (high_bits[j] >> i) & 1;
    out[j] = static_cast<int8_t>(((pair[j] >> shift) & 15) | fifth << 4);
  }
  return {LoadHalf(header) * static_cast<float>(sm.scale),
          LoadHalf(header + 2) * static_cast<float>(sm.min)};
}

void DequantizeSuper(const uint8_t* header, const uint8_t* high_bits, const uint8_t* codes,
                     float* out) {
  int8_t code[kSub];
  for (int i = 0; i < kSuper / kSub; ++i) {
    const Sub sub = ReadSub(header, high_bits, codes, i, code);
    for (int j = 0; j < kSub; ++j)
      out[i * kSub + j] = sub.scale * static_cast<float>(code[j]) - sub.min;
  }
}

void SplitSuper(const uint8_t* header, const uint8_t* high_bits, const uint8_t* codes, int8_t* to,
                float* scales, float* offsets) {
  for (int i = 0; i < kSuper / kSub; ++i) {
    const Sub sub = ReadSub(header, high_bits, codes, i, to + i * kSub);
    scales[i] = sub.scale;
    offsets[i] = -sub.min;
  }
}

constexpr int kHeader = 4 + kScaleBytes;
constexpr int kHighBytes = kSuper / 8;

// Q6_K: 128 bytes of low 4 bits, 64 bytes of high 2 bits, 16 int8 scales, fp16 d. Each half of 128 numbers: number j of
// its four runs of 32 takes low bits from byte j or j + 32 (runs 0, 1 low halves, 2, 3 high halves), high bits from byte j.
constexpr int kLow6 = kSuper / 2, kHigh6 = kSuper / 4, kScales6 = kSuper / 16;
constexpr int kBytes6 = kLow6 + kHigh6 + kScales6 + 2;

float Scale6(const uint8_t* bytes, int i) {
  const uint8_t* scales = bytes + kLow6 + kHigh6;
  return LoadHalf(scales + kScales6) * static_cast<float>(static_cast<int8_t>(scales[i]));
}

void ReadCodes6(const uint8_t* bytes, int8_t* out) {
  for (int run = 0; run < kSuper / kSub; ++run) {
    const int half = run / 4, part = run % 4;
    const uint8_t* low = bytes + half * 64 + (part % 2) * kSub;
    const uint8_t* high = bytes + kLow6 + half * kSub;
    for (int j = 0; j < kSub; ++j, ++out) {
      const int code = ((low[j] >> (4 * (part / 2))) & 15) | ((high[j] >> (2 * part)) & 3) << 4;
      *out = static_cast<int8_t>(code - 32);
    }
  }
}

}  // namespace

void DequantizeQ4K(const uint8_t* bytes, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, bytes += kHeader + kSuper / 2, out += kSuper) {
    DequantizeSuper(bytes, nullptr, bytes + kHeader, out);
  }
}

void DequantizeQ5K(const uint8_t* bytes, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, bytes += kHeader + kHighBytes + kSuper / 2, out += kSuper) {
    DequantizeSuper(bytes, bytes + kHeader, bytes + kHeader + kHighBytes, out);
  }
}

void DequantizeQ6K(const uint8_t* bytes, int64_t blocks, float* out) {
  int8_t codes[kSuper];
  for (int64_t b = 0; b < blocks; ++b, bytes += kBytes6, out += kSuper) {
    ReadCodes6(bytes, codes);
    for (int j = 0; j < kSuper; ++j) out[j] = Scale6(bytes, j / 16) * static_cast<float>(codes[j]);
  }
}

void SplitQ4K(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales, float* offsets) {
  for (int64_t b = 0; b < blocks; ++b, bytes += kHeader + kSuper / 2) {
    SplitSuper(bytes, nullptr, bytes + kHeader, codes + b * kSuper, scales + b * 8,
               offsets + b * 8);
  }
}

void SplitQ5K(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales, float* offsets) {
  for (int64_t b = 0; b < blocks; ++b, bytes += kHeader + kHighBytes + kSuper / 2) {
    SplitSuper(bytes, bytes + kHeader, bytes + kHeader + kHighBytes, codes + b * kSuper,
               scales + b * 8, offsets + b * 8);
  }
}

void SplitQ6K(const uint8_t* bytes, int64_t blocks, int8_t* codes, float* scales,
              float* /*offsets*/) {
  for (int64_t b = 0; b < blocks; ++b, bytes += kBytes6) {
    ReadCodes6(bytes, codes + b * kSuper);
    for (int i = 0; i < kScales6; ++i) scales[b * kScales6 + i] = Scale6(bytes, i);
  }
}

}  // namespace kvring::weights
