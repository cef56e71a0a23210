// SPDX-License-Identifier: Apache-2.0
// Tolerances that follow from the arithmetic, and comparisons that name the worst element.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace kvring {

// Unit roundoffs: half a unit in the last place.
inline constexpr double kUnitF32 = 0x1p-24;
inline constexpr double kUnitBf16 = 0x1p-8;
inline constexpr double kUnitF16 = 0x1p-11;

struct Tolerance {
  double absolute = 0;
  double relative = 0;

  double Allowed(double want) const { return absolute + relative * std::fabs(want); }

  // A sum of `terms` products with f32 accumulation, in any order: |error| <= terms * u * sum |a b| (Higham, Accuracy and
  // Stability of Numerical Algorithms, section 3.1), and operands rounded beforehand with unit roundoff `operand_unit`
  // (0 when they are exact). `magnitude` is sum |a b|, or a bound of it.
  static Tolerance ForDot(int64_t terms, double magnitude, double operand_unit = 0) {
    const double accumulate = static_cast<double>(terms + 1) * kUnitF32;
    return {(accumulate + 2 * operand_unit + operand_unit * operand_unit) * magnitude, 0};
  }
};

// Elements agree within the tolerance; NaN and infinities coincide.
inline ::testing::AssertionResult AllNear(std::span<const float> got, std::span<const float> want,
                                          const Tolerance& tolerance) {
  if (got.size() != want.size())
    return ::testing::AssertionFailure() << got.size() << " elements, not " << want.size();
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    double excess = std::fabs(static_cast<double>(got[i]) - want[i]) - tolerance.Allowed(want[i]);
    if (std::isnan(got[i]) != std::isnan(want[i])) excess = INFINITY;
    if (std::isinf(got[i]) || std::isinf(want[i])) excess = got[i] == want[i] ? -1 : INFINITY;
    if (excess > worst) worst = excess, at = i;
  }
  if (worst == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "element " << at << " of " << got.size() << ": " << got[at] << ", not " << want[at]
         << "; allowed " << tolerance.Allowed(want[at]);
}

// Same bits, signs of zeros and NaN included.
inline ::testing::AssertionResult SameBits(std::span<const float> got,
                                           std::span<const float> want) {
  if (got.size() != want.size())
    return ::testing::AssertionFailure() << got.size() << " elements, not " << want.size();
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(float)) != 0) {
      return ::testing::AssertionFailure()
             << "element " << i << " of " << got.size() << ": " << got[i] << ", not " << want[i];
    }
  }
  return ::testing::AssertionSuccess();
}

// n normal numbers with the given spread; a fixed generator, so that every machine has the same ones.
inline std::vector<float> NormalFloats(int64_t n, uint32_t seed, float spread = 1.0f) {
  std::mt19937 generator(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) {
    // Sum of 12 uniforms, less its mean: close enough to normal, and not left to the library's choice.
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(generator()) * 0x1p-32;
    value = static_cast<float>(sum) * spread;
  }
  return x;
}

}  // namespace kvring
