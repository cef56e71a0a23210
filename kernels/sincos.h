// SPDX-License-Identifier: Apache-2.0
// Sine and cosine in double from basic operations only: the same bits on every machine and C library, so that two ranks
// on unlike hosts encode the same key to the same bytes. Error below 1e-13 for |x| up to 2^26 radians.
#pragma once

#include <bit>
#include <cstdint>

namespace kvring {

struct SinCosResult {
  double sin, cos;
};

inline SinCosResult SinCos(double x) {
  // Quadrant by the rounding of an addition; pi/2 in three parts of 27 bits, so that quadrant * part is exact (Cody, Waite).
  constexpr double kRound = 0x1.8p52;
  constexpr double kHalfPi1 = 0x1.921fb54p+0, kHalfPi2 = 0x1.10b461p-30,
                   kHalfPi3 = 0x1.a62633145c06ep-58;
  const double shifted = x * 0x1.45f306dc9c883p-1 + kRound;
  const double quadrant = shifted - kRound;
  const uint64_t low = std::bit_cast<uint64_t>(shifted);
  const double r = ((x - quadrant * kHalfPi1) - quadrant * kHalfPi2) - quadrant * kHalfPi3;
  // Taylor series on [-pi/4, pi/4]: the first term left out is below 3e-15.
  const double z = r * r;
  double s = 1.0 / 355687428096000.0;
  s = -1.0 / 1307674368000.0 + z * s;
  s = 1.0 / 6227020800.0 + z * s;
  s = -1.0 / 39916800.0 + z * s;
  s = 1.0 / 362880.0 + z * s;
  s = -1.0 / 5040.0 + z * s;
  s = 1.0 / 120.0 + z * s;
  s = -1.0 / 6.0 + z * s;
  const double sine = r + r * z * s;
  double c = 1.0 / 20922789888000.0;
  c = -1.0 / 87178291200.0 + z * c;
  c = 1.0 / 479001600.0 + z * c;
  c = -1.0 / 3628800.0 + z * c;
  c = 1.0 / 40320.0 + z * c;
  c = -1.0 / 720.0 + z * c;
  c = 1.0 / 24.0 + z * c;
  c = -0.5 + z * c;
  const double cosine = 1.0 + z * c;
  const bool odd = (low & 1) != 0;
  const double first = odd ? cosine : sine;
  const double second = odd ? sine : cosine;
  return {(low & 2) != 0 ? -first : first, ((low + 1) & 2) != 0 ? -second : second};
}

}  // namespace kvring
