// SPDX-License-Identifier: Apache-2.0
// exp2 in fp32, one definition for scalar and vector code: the same steps in the same order, fused operations written
// out, so every caller gets the same bits from the same argument on every target that has fused multiply-add.
//
//   n = round(x), f = x - n in [-1/2, 1/2];  2^x = 2^n * P(f),  P a degree-6 minimax polynomial of relative error 2^-28.9
//   with P(0) = 1.
//
// Exact at integers. Relative error at most 1.2e-7 on [-126, 127.5) (tests/kernels/exp2_test.cc compares with double).
// Below -126 the result is +0 (no subnormals), from 127.5 on it is +inf; NaN stays NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace kvring {

// Coefficients of f^1 .. f^6.
inline constexpr float kExp2Poly[6] = {0x1.62e430p-1f, 0x1.ebfbdcp-3f,  0x1.c6aee8p-5f,
                                       0x1.3b2d4cp-7f, 0x1.5f3e54p-10f, 0x1.41fbbcp-13f};
// x + kExp2Magic rounds |x| < 2^22 to an integer, which is then in the low bits.
inline constexpr float kExp2Magic = 12582912.0f;  // 1.5 * 2^23
inline constexpr float kExp2Low = -126.0f;
inline constexpr float kExp2High = 127.5f;
inline constexpr float kLog2E = 0x1.715476p+0f;

inline float Exp2(float x) {
  if (x < kExp2Low) return 0.0f;
  if (x >= kExp2High) return std::bit_cast<float>(0x7f800000u);
  if (x != x) return x;
  const float shifted = x + kExp2Magic;
  const float f = x - (shifted - kExp2Magic);
  float p = kExp2Poly[5];
  for (int i = 4; i >= 0; --i) p = std::fma(p, f, kExp2Poly[i]);
  p = std::fma(p, f, 1.0f);
  const uint32_t n = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kExp2Magic);
  return p * std::bit_cast<float>((n + 127u) << 23);
}

}  // namespace kvring
