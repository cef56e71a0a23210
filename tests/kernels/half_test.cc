// SPDX-License-Identifier: Apache-2.0
#include "kernels/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>

#include "kernels/convert.h"
#include "tests/kernels/simd_targets.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

// Every 16-bit pattern.
std::vector<uint16_t> AllPatterns() {
  std::vector<uint16_t> all(65536);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Floats that rounding to 16 bits finds hard: each half, the middle to its neighbour, the floats beside both, and
// patterns spread over all magnitudes.
std::vector<float> HardFloats() {
  std::vector<float> x;
  for (uint32_t h = 0; h < 0x7c00; ++h) {
    const float low = HalfToFloat(static_cast<Half>(h));
    const float high = h == 0x7bff ? 65536.0f : HalfToFloat(static_cast<Half>(h + 1));
    const float middle = low + (high - low) / 2;
    for (float f : {low, middle}) {
      for (float g : {std::nextafter(f, -INFINITY), f, std::nextafter(f, INFINITY)})
        x.insert(x.end(), {g, -g});
    }
  }
  std::mt19937 generator(7);
  for (int i = 0; i < 200000; ++i)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(generator())));
  for (float f : {0.0f, -0.0f, INFINITY, -INFINITY, 65504.0f, 65519.99f, 65520.0f, 1e-45f, -1e-45f})
    x.push_back(f);
  return x;
}

TEST(Half, EveryHalfIsTheNumberThatItsFieldsSay) {
  for (uint16_t h : AllPatterns()) {
    const int exponent = (h >> 10) & 31, fraction = h & 1023;
    const double sign = h & 0x8000 ? -1 : 1;
    const float got = HalfToFloat(h);
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(got), fraction != 0);
      EXPECT_EQ(std::isinf(got), fraction == 0);
    } else {
      const double want =
          exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      EXPECT_EQ(got, sign * want) << h;
    }
    EXPECT_EQ(std::signbit(got), (h & 0x8000) != 0);
    if (!std::isnan(got)) {
      EXPECT_EQ(FloatToHalf(got), h);
    }
  }
}

TEST(Half, RoundsToNearestEven) {
  for (float x : HardFloats()) {
    const Half got = FloatToHalf(x);
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(got)));
      continue;
    }
    if (std::fabs(x) >= 65520.0f) {
      EXPECT_TRUE(std::isinf(HalfToFloat(got))) << x;
      continue;
    }
    // No neighbour is nearer; when one is as near, ours is even.
    const double error = std::fabs(static_cast<double>(HalfToFloat(got)) - x);
    for (int step : {-1, 1}) {
      const auto other = static_cast<Half>((got & 0x8000) | (((got & 0x7fff) + step) & 0x7fff));
      if ((got & 0x7fff) == 0 && step < 0) continue;
      const double distance = (other & 0x7fff) == 0x7c00
                                  ? 65536.0 - std::fabs(x)
                                  : std::fabs(static_cast<double>(HalfToFloat(other)) - x);
      EXPECT_LE(error, distance) << x;
      if (error == distance) {
        EXPECT_EQ(got & 1, 0) << x;
      }
    }
  }
}

TEST(Half, AgreesWithTheCompilersOwnType) {
#ifdef __FLT16_MANT_DIG__
  for (float x : HardFloats()) {
    if (std::isnan(x)) continue;
    EXPECT_EQ(FloatToHalf(x), std::bit_cast<Half>(static_cast<_Float16>(x))) << x;
  }
#else
  GTEST_SKIP() << "this compiler has no _Float16";
#endif
}

TEST(Half, SaturatedFormStaysFinite) {
  for (float x : {65520.0f, 1e30f, INFINITY}) {
    EXPECT_EQ(HalfToFloat(FloatToHalfSaturated(x)), 65504.0f);
    EXPECT_EQ(HalfToFloat(FloatToHalfSaturated(-x)), -65504.0f);
  }
  EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalfSaturated(NAN))));
}

TEST(BFloat16, RoundsToNearestEven) {
  for (float x : HardFloats()) {
    const float got = BFloat16ToFloat(FloatToBFloat16(x));
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(got));
      continue;
    }
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint32_t down = bits & 0xffff0000u, rest = bits & 0xffffu;
    const bool up = rest > 0x8000u || (rest == 0x8000u && (down >> 16 & 1u));
    EXPECT_EQ(std::bit_cast<uint32_t>(got), down + (up ? 0x10000u : 0u)) << x;
  }
}

// Bulk conversions give the scalar's bits on every instruction set, at every length and offset.
TEST(Convert, BulkIsTheScalarBitForBit) {
  const auto patterns = AllPatterns();
  auto floats = HardFloats();
  floats.insert(floats.end(), {NAN, -NAN});
  const auto n = static_cast<int64_t>(floats.size());
  ForEachSimdTarget([&](int64_t) {
    std::vector<float> wide(65536);
    HalfToFloat(patterns.data(), 65536, wide.data());
    for (int i = 0; i < 65536; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(HalfToFloat(patterns[i])))
          << i;
    }
    BFloat16ToFloat(patterns.data(), 65536, wide.data());
    for (int i = 0; i < 65536; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]),
                std::bit_cast<uint32_t>(BFloat16ToFloat(patterns[i])))
          << i;
    }
    std::vector<uint16_t> narrow(floats.size());
    FloatToHalf(floats.data(), n, narrow.data());
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(narrow[i], FloatToHalf(floats[i])) << floats[i];
    FloatToHalfSaturated(floats.data(), n, narrow.data());
    for (int64_t i = 0; i < n; ++i)
      ASSERT_EQ(narrow[i], FloatToHalfSaturated(floats[i])) << floats[i];
    FloatToBFloat16(floats.data(), n, narrow.data());
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(narrow[i], FloatToBFloat16(floats[i])) << floats[i];
  });
}

TEST(Convert, ShortAndUnalignedSpansWriteNothingElse) {
  const auto x = NormalFloats(80, 3);
  ForEachSimdTarget([&](int64_t) {
    for (int n = 0; n <= 40; ++n) {
      std::vector<uint16_t> y(64, 0xabcd);
      FloatToHalf(x.data() + 1, n, y.data() + 3);
      std::vector<float> back(64, 5.0f);
      HalfToFloat(y.data() + 3, n, back.data() + 5);
      for (int i = 0; i < 64; ++i) {
        EXPECT_EQ(y[i], i >= 3 && i < 3 + n ? FloatToHalf(x[i - 2]) : 0xabcd);
        EXPECT_EQ(back[i], i >= 5 && i < 5 + n ? HalfToFloat(y[i - 2]) : 5.0f);
      }
    }
  });
}

TEST(Convert, TransposeMovesEveryElement) {
  ForEachSimdTarget([&](int64_t) {
    for (auto [rows, columns] :
         {std::pair{1, 1}, {64, 64}, {64, 80}, {3, 17}, {16, 100}, {65, 33}}) {
      std::vector<float> x(static_cast<size_t>(rows * columns)), y(x.size() + 1, -1.0f);
      std::iota(x.begin(), x.end(), 0.0f);
      Transpose(x.data(), rows, columns, y.data());
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < columns; ++c) ASSERT_EQ(y[c * rows + r], x[r * columns + c]);
      }
      EXPECT_EQ(y.back(), -1.0f);
    }
  });
}

}  // namespace
}  // namespace kvring
