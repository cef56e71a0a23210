// SPDX-License-Identifier: Apache-2.0
// The parts of tc that know nothing of tables: bits, levels and gains, planes of codes, small matrices.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include "kernels/codec/lloyd_max.h"
#include "kernels/codec/small_matrix.h"
#include "kernels/codec/tc_bits.h"
#include "kernels/codec/tc_levels.h"
#include "kernels/codec/tc_planes.h"
#include "tests/kernels/simd_targets.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

double Loss(const std::vector<double>& energy, const std::vector<uint8_t>& bits) {
  double sum = 0.0;
  for (size_t i = 0; i < energy.size(); ++i) sum += energy[i] * TcDistortion(bits[i]);
  return sum;
}

// The least loss over every way to spend at most `budget` bits.
double BruteForce(const std::vector<double>& energy, size_t at, int64_t budget) {
  if (at == energy.size()) return 0.0;
  double best = HUGE_VAL;
  for (int b = 0; b <= std::min<int64_t>(kTcMaxBits, budget); ++b) {
    best = std::min(best, energy[at] * TcDistortion(b) + BruteForce(energy, at + 1, budget - b));
  }
  return best;
}

TEST(WaterFill, IsTheBestOfAllWays) {
  std::mt19937 random(1);
  std::lognormal_distribution<double> spread(0.0, 3.0);
  for (int round = 0; round < 5; ++round) {
    std::vector<double> energy(5);
    for (double& e : energy) e = spread(random);
    for (int64_t budget = 0; budget <= 32; ++budget) {
      const std::vector<uint8_t> bits = WaterFill(energy, budget);
      int64_t spent = 0;
      for (const uint8_t b : bits) spent += b;
      EXPECT_EQ(spent, std::min<int64_t>(budget, 5 * kTcMaxBits));
      const double best = BruteForce(energy, 0, budget);
      // Five products are added in another order.
      EXPECT_NEAR(Loss(energy, bits), best, best * 5 * 0x1p-52) << budget;
    }
  }
}

TEST(WaterFill, TiesGoToTheLowerIndexAndZerosWaitToTheEnd) {
  EXPECT_EQ(WaterFill(std::vector<double>{1, 1, 1}, 4), (std::vector<uint8_t>{2, 1, 1}));
  EXPECT_EQ(WaterFill(std::vector<double>{0, 1, 0}, 7), (std::vector<uint8_t>{1, 6, 0}));
  EXPECT_EQ(WaterFill(std::vector<double>{}, 7), std::vector<uint8_t>{});
}

TEST(TcRate, Names) {
  EXPECT_EQ(ParseTcRate("tc3"), 300);
  EXPECT_EQ(ParseTcRate("tc2.5"), 250);
  EXPECT_EQ(ParseTcRate("tc@2.3"), 230);
  EXPECT_EQ(ParseTcRate("tc@2.25"), 225);
  EXPECT_EQ(ParseTcRate("tc@6"), 600);
  for (const char* wrong : {"tc", "tc@", "tc@0.9", "tc@6.01", "tc@7", "tc@2.", "tc@2.123", "tc@2x",
                            "tc@-2", "tc@2.x", "td3", "tc@22"})
    EXPECT_EQ(ParseTcRate(wrong), 0) << wrong;
  EXPECT_EQ(TcBudget(230, 1280), 2 * 160 + 48);
  EXPECT_EQ(TcBudget(100, 60), 7);  // 7.5 classes of 8: never beyond the rate
}

// tests/golden/codec/tables.py: levels at 2..4 bits are those of rot, and E (x - q(x))^2 is what water-filling counts with,
// but for the rounding to int8 (7 % at 6 bits).
TEST(TcLevels, ErrorOfNormalNumbers) {
  for (int bits = 2; bits <= 4; ++bits) {
    const LloydMax& rot = LloydMaxTable(bits);
    EXPECT_EQ(TcLevelsOf(bits).unit, rot.unit);
    for (int c = 0; c < 1 << bits; ++c) EXPECT_EQ(TcLevelsOf(bits).level[c], rot.level[c]);
  }
  for (int bits = 1; bits <= kTcMaxBits; ++bits) {
    const TcLevels& levels = TcLevelsOf(bits);
    double error = 0.0, mass = 0.0;  // a Riemann sum over the density, fine enough for four digits
    for (double x = -8; x < 8; x += 0x1p-10) {
      double nearest = HUGE_VAL;
      for (int c = 0; c < 1 << bits; ++c)
        nearest = std::min(nearest, std::fabs(x - levels.number[c]));
      const double density = std::exp(-x * x / 2);
      error += density * nearest * nearest;
      mass += density;
    }
    EXPECT_NEAR(error / mass / TcDistortion(bits), 1.0, bits < 5 ? 0.003 : 0.08) << bits;
  }
}

// Every coefficient gets the level nearest at the lane's gain, and no gain byte beside it leaves less weighted error by more
// than the search is short of the optimum.
TEST(TcLevels, CodesAreNearestAndGainsGood) {
  const std::vector<uint8_t> bits = {6, 5, 4, 3, 3, 2, 1, 0};
  std::vector<float> weight(64), z = NormalFloats(64 * kLanes, 3);
  // As water-filling leaves them: every class with bits loses about the same.
  for (int i = 0; i < 64; ++i) weight[i] = static_cast<float>(1 / TcDistortion(bits[i / 8]));
  for (int i = 0; i < 64; ++i) {
    for (int l = 0; l < kLanes; ++l) z[i * kLanes + l] *= std::exp2(l - 8.0f);
  }
  std::vector<uint8_t> codes(64 * kLanes, 0), e(kLanes);
  std::vector<int32_t> saturated(kLanes);
  EncodeTcGroup({64, bits.data(), weight.data()}, z.data(), codes.data(), e.data(),
                saturated.data());
  const auto error_at = [&](int lane, int byte, bool check) {
    const float gain = ScaleValue(static_cast<uint8_t>(byte));
    double error = 0.0;
    for (int i = 0; i < 56; ++i) {
      const TcLevels& levels = TcLevelsOf(bits[i / 8]);
      const double x = z[i * kLanes + lane];
      double nearest = HUGE_VAL;
      for (int c = 0; c < 1 << bits[i / 8]; ++c)
        nearest = std::min(nearest, std::fabs(x - gain * levels.number[c]));
      const double own = std::fabs(x - gain * levels.number[codes[i * kLanes + lane]]);
      // On a border both neighbours are as good, up to the rounding of fp32.
      if (check) {
        EXPECT_LE(own, nearest + std::fabs(x) * 0x1p-22) << i;
      }
      error += weight[i] * nearest * nearest;
    }
    return error;
  };
  for (int lane = 0; lane < kLanes; ++lane) {
    const double own = error_at(lane, e[lane], true);
    double best = own;
    for (int byte = e[lane] - 4; byte <= e[lane] + 4; ++byte)
      best = std::min(best, error_at(lane, byte, false));
    // Up to six bytes of gain off what the search ends on, where the error is ragged: the least of many is not of the best five.
    EXPECT_LT(own, 1.35 * best) << lane;
    EXPECT_EQ(saturated[lane], 0);
    EXPECT_NEAR(e[lane], 112 + 8 * (lane - 8), 4) << lane;  // gains near the lanes' own size
  }
}

TEST(TcLevels, ZerosSmallAndLarge) {
  const std::vector<uint8_t> bits = {3, 0};
  const std::vector<float> weight(16, 1.0f);
  std::vector<float> z(16 * kLanes, 0.0f);
  for (int i = 0; i < 16; ++i) {
    z[i * kLanes + 1] = 0x1p-40f;                // far below the smallest gain: nearer to zero
    z[i * kLanes + 2] = 0x1p30f;                 // beyond the largest
    z[i * kLanes + 3] = i < 8 ? 0.0f : 1000.0f;  // only where there are no bits
  }
  std::vector<uint8_t> codes(16 * kLanes, 0), e(kLanes);
  std::vector<int32_t> saturated(kLanes);
  EncodeTcGroup({16, bits.data(), weight.data()}, z.data(), codes.data(), e.data(),
                saturated.data());
  EXPECT_EQ(e[0], 0);
  EXPECT_EQ(e[1], 0);
  EXPECT_EQ(e[2], 255);
  EXPECT_EQ(e[3], 0);
  EXPECT_EQ(saturated[0] + saturated[1] + saturated[3], 0);
  EXPECT_EQ(saturated[2], 8);
  for (int i = 8; i < 16; ++i) EXPECT_EQ(codes[i * kLanes + 2], 0);
}

// Every width, slots in any order, both forms: what is put is read, neighbours stay.
TEST(TcPlanes, PutAndRead) {
  constexpr int kBlock = 32;
  std::mt19937 random(5);
  for (int bits = 1; bits <= kTcMaxBits; ++bits) {
    for (const bool key : {true, false}) {
      std::vector<uint8_t> planes(ClassBytes(bits, kBlock) + 1, 0xa5);
      std::vector<std::array<uint8_t, 8>> codes(kBlock);
      for (int round = 0; round < 3; ++round) {
        for (int n = 0; n < kBlock; ++n) {
          const int slot = n * 13 % kBlock;
          for (uint8_t& c : codes[slot]) c = random() % (1u << bits);
          (key ? PutKeyClass : PutValueClass)(codes[slot].data(), bits, slot, kBlock,
                                              planes.data());
        }
      }
      EXPECT_EQ(planes.back(), 0xa5);
      for (int slot = 0; slot < kBlock; ++slot) {
        for (int r = 0; r < 8; ++r) {
          EXPECT_EQ((key ? KeyCodeAt : ValueCodeAt)(planes.data(), bits, slot, kBlock, r),
                    codes[slot][r])
              << bits << " " << slot << " " << r;
        }
      }
    }
  }
}

// Vector code reads what the plain reading says, on every instruction set; keys of a short last class, values of few tokens.
TEST(TcPlanes, TilesAreThePlainReading) {
  constexpr int kBlock = 48;
  std::mt19937 random(6);
  const std::vector<float> scale = NormalFloats(kBlock, 7), factor = NormalFloats(8, 8);
  for (int bits = 1; bits <= kTcMaxBits; ++bits) {
    std::vector<uint8_t> planes(ClassBytes(bits, kBlock));
    for (uint8_t& byte : planes) byte = static_cast<uint8_t>(random());
    const float* const numbers = TcLevelsOf(bits).number.data();
    ForEachSimdTarget([&](int64_t) {
      std::vector<float> kt(5 * kBlock, 1.0f), v(kBlock * 9, -1.0f);
      AddKeyClass(planes.data(), bits, 5, kBlock, numbers, scale.data(), kt.data());
      ReadValueClass(planes.data(), bits, 19, kBlock, numbers, scale.data(), factor.data(), 9,
                     v.data());
      for (int t = 0; t < kBlock; ++t) {
        for (int r = 0; r < 5; ++r) {
          const float number = numbers[KeyCodeAt(planes.data(), bits, t, kBlock, r)];
          ASSERT_EQ(kt[r * kBlock + t], 1.0f + scale[t] * number);
        }
        for (int c = 0; c < 8 && t < 19; ++c) {
          const float number = numbers[ValueCodeAt(planes.data(), bits, t, kBlock, c)];
          ASSERT_EQ(v[t * 9 + c], scale[t] * (factor[c] * number));
        }
        ASSERT_EQ(v[t * 9 + 8], -1.0f);
      }
    });
  }
}

// Rows and columns give the same bits, alone and in company, on every instruction set; and are near the sum in double.
TEST(SmallMatrix, RowsAndColumnsAgree) {
  for (const auto& [in, out] : {std::pair(64, 64), std::pair(100, 100), std::pair(16, 7)}) {
    const std::vector<float> m = NormalFloats(in * out, 9), x = NormalFloats(in * 32, 10);
    std::vector<float> first;
    ForEachSimdTarget([&](int64_t) {
      std::vector<float> rows(32 * out), columns(32 * out), xt(in * 32), alone(out);
      for (int r = 0; r < 32; ++r) {
        for (int i = 0; i < in; ++i) xt[i * 32 + r] = x[r * in + i];
      }
      RowsTimesMatrix(x.data(), 32, m.data(), in, out, rows.data());
      ColumnsTimesMatrix(xt.data(), 32, m.data(), in, out, columns.data());
      RowsTimesMatrix(&x[5 * in], 1, m.data(), in, out, alone.data());
      for (int j = 0; j < out; ++j) {
        ASSERT_EQ(alone[j], rows[5 * out + j]);
        for (int r = 0; r < 32; ++r) ASSERT_EQ(columns[j * 32 + r], rows[r * out + j]);
      }
      if (first.empty()) first = rows;
      ASSERT_TRUE(SameBits(rows, first));
    });
    for (int j = 0; j < out; ++j) {
      double sum = 0.0, magnitude = 0.0;
      for (int i = 0; i < in; ++i) {
        sum += double{x[i]} * m[i * out + j];
        magnitude += std::fabs(double{x[i]} * m[i * out + j]);
      }
      EXPECT_NEAR(first[j], sum, Tolerance::ForDot(in, magnitude).absolute + magnitude * kUnitF32);
    }
  }
}

}  // namespace
}  // namespace kvring
