// SPDX-License-Identifier: Apache-2.0
// 16-bit floats as storage. Scalar conversions, exact and the same on every machine; bulk ones are in convert.h.
#pragma once

#include <bit>
#include <cstdint>

namespace kvring {

using Half = uint16_t;      // IEEE 754 binary16 bits
using BFloat16 = uint16_t;  // upper half of binary32 bits

// Exact for every input, subnormals included; NaN stays NaN.
inline float HalfToFloat(Half h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t rest = h & 0x7fffu;
  if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  if (rest >= 0x0400u) return std::bit_cast<float>(sign | ((rest << 13) + (112u << 23)));
  const float magnitude = static_cast<float>(rest) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

// Round to nearest even; overflow gives infinity (FloatToHalfSaturated for the finite form); NaN stays NaN.
inline Half FloatToHalf(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t abs = bits & 0x7fffffffu;
  if (abs > 0x7f800000u) return static_cast<Half>(sign | 0x7e00u);
  if (abs >= 0x47800000u) return static_cast<Half>(sign | 0x7c00u);
  if (abs < 0x38800000u) {  // below 2^-14: a subnormal, rounded by the addition of 2^-1's ulp
    const float shifted = std::bit_cast<float>(abs) + 0.5f;
    return static_cast<Half>(sign |
                             (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f)));
  }
  const uint32_t rounded = abs + 0xfffu + ((abs >> 13) & 1u);
  return static_cast<Half>(sign | ((rounded - (112u << 23)) >> 13));
}

inline Half FloatToHalfSaturated(float f) {
  const float limit = 65504.0f;
  return FloatToHalf(f > limit ? limit : f < -limit ? -limit : f);
}

inline float BFloat16ToFloat(BFloat16 b) {
  return std::bit_cast<float>(static_cast<uint32_t>(b) << 16);
}

// Round to nearest even; NaN stays NaN.
inline BFloat16 FloatToBFloat16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<BFloat16>((bits >> 16) | 0x40u);
  return static_cast<BFloat16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace kvring
