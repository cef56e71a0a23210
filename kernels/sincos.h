// SPDX-License-Identifier: Apache-2.0
// Sine and cosine in double from basic operations only: the same bits on every machine and C library, so that two ranks
// on unlike hosts encode the same key to the same bytes. Error below 1e-13 for |x| up to 2^26 radians.
#pragma once

#include <bit>
#include <cstdint>

namespace kvring {

// Quadrant by the rounding of an addition; pi/2 in three parts of 27 bits, so that quadrant * part is exact (Cody, Waite).
inline constexpr double kSinCosTwoOverPi = 0x1.45f306dc9c883p-1, kSinCosRound = 0x1.8p52;
inline constexpr double kSinCosHalfPi[3] = {0x1.921fb54p+0, 0x1.10b461p-30, 0x1.a62633145c06ep-58};
// Taylor series on [-pi/4, pi/4], last coefficient first: the first term left out is below 3e-15.
inline constexpr double kSineSeries[8] = {
    1.0 / 355687428096000.0, -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0,
    1.0 / 362880.0,          -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
inline constexpr double kCosineSeries[8] = {
    1.0 / 20922789888000.0, -1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0,
    1.0 / 40320.0,          -1.0 / 720.0,         1.0 / 24.0,        -0.5};

struct SinCosResult {
  double sin, cos;
};

inline SinCosResult SinCos(double x) {
  const double shifted = x * kSinCosTwoOverPi + kSinCosRound;
  const double quadrant = shifted - kSinCosRound;
  const uint64_t low = std::bit_cast<uint64_t>(shifted);
  double r = x;
  for (double part : kSinCosHalfPi) r = r - quadrant * part;
  const double z = r * r;
  double s = kSineSeries[0], c = kCosineSeries[0];
  for (int i = 1; i < 8; ++i) {
    s = kSineSeries[i] + z * s;
    c = kCosineSeries[i] + z * c;
  }
  const double sine = r + r * z * s;
  const double cosine = 1.0 + z * c;
  const bool odd = (low & 1) != 0;
  const double first = odd ? cosine : sine;
  const double second = odd ? sine : cosine;
  return {(low & 2) != 0 ? -first : first, ((low + 1) & 2) != 0 ? -second : second};
}

}  // namespace kvring
