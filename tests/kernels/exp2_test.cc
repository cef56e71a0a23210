// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/exp2.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "tests/kernels/simd_targets.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

TEST(Exp2, StaysWithinItsStatedErrorOfDouble) {
  double worst = 0;
  // Every 97th float in the domain, both signs: about 23 million steps of the bit pattern.
  for (uint32_t bits = 0; bits < std::bit_cast<uint32_t>(127.5f); bits += 97) {
    for (float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)}) {
      if (x < kExp2Low) continue;
      const double want = std::exp2(static_cast<double>(x));
      worst = std::max(worst, std::fabs(Exp2(x) - want) / want);
    }
  }
  RecordProperty("worst_relative_error", std::to_string(worst));
  EXPECT_LE(worst, 1.2e-7) << "the bound that exp2.h states";
}

TEST(Exp2, IsExactAtIntegersAndAtItsEnds) {
  for (int n = -126; n <= 127; ++n)
    EXPECT_EQ(Exp2(static_cast<float>(n)), std::ldexp(1.0f, n)) << n;
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Exp2(-inf), 0.0f);
  EXPECT_EQ(Exp2(std::nextafter(-126.0f, -inf)), 0.0f);
  EXPECT_FALSE(std::signbit(Exp2(-1e30f)));
  EXPECT_EQ(Exp2(127.5f), inf);
  EXPECT_EQ(Exp2(inf), inf);
  EXPECT_TRUE(std::isnan(Exp2(NAN)));
  EXPECT_TRUE(std::isnan(Exp2(-NAN)));
}

}  // namespace
}  // namespace kvring
