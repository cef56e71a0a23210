// SPDX-License-Identifier: Apache-2.0
// The basis of the bias: what its few functions give for a page's slots, against cosines and sines in double.
#include "kernels/codec/page_turns.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvring {
namespace {

constexpr int kBlock = 64;
constexpr double kOne = 32767.0;  // of the table, and the sum of a row's amplitudes

struct Planes {
  std::vector<double> re, im;  // at the page's middle
};

// Amplitudes that add to kOne, all of them in planes from `first` on.
Planes RandomPlanes(int planes, int first, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  Planes z{std::vector<double>(planes), std::vector<double>(planes)};
  double total = 0;
  for (int p = first; p < planes; ++p) {
    z.re[p] = normal(generator), z.im[p] = normal(generator);
    total += std::hypot(z.re[p], z.im[p]);
  }
  for (int p = first; p < planes; ++p) z.re[p] *= kOne / total, z.im[p] *= kOne / total;
  return z;
}

// Coefficients of even (parity 0) or odd functions, as integers of 16 bits.
std::vector<int> Coefficients(const PageTurns& turns, const Planes& z, int parity) {
  const std::vector<double>& x = parity == 0 ? z.re : z.im;
  const int planes = static_cast<int>(x.size()), count = turns.stride() - turns.folded();
  std::vector<double> sums(turns.functions());
  for (int p = 0; p < planes; ++p) {
    if (p < turns.folded()) sums[p] = x[p];
    for (int i = 0; p >= turns.folded() && i < 2; ++i)
      sums[turns.folded() + i] +=
          x[p] * turns.fold()[(2 * parity + i) * count + p - turns.folded()];
  }
  std::vector<int> rounded;
  for (const double sum : sums) rounded.push_back(static_cast<int>(std::lround(sum)));
  return rounded;
}

void ExpectBasisGivesPlanes(const RopeTable& rope, int first_plane, unsigned seed) {
  const PageTurns turns(rope, kBlock);
  const Planes z = RandomPlanes(rope.planes(), first_plane, seed);
  const std::vector<int> even = Coefficients(turns, z, 0), odd = Coefficients(turns, z, 1);
  for (const int c : even) EXPECT_LE(std::abs(c), 32767);
  for (const int c : odd) EXPECT_LE(std::abs(c), 32767);
  // Half a unit of each coefficient; half a unit of the table's numbers, for amplitudes of 1.02 at most; and half a unit that the
  // powers leave out.
  const double tolerance = kOne * (0.5 * 2 * turns.functions() + 0.5 * 1.02 * std::sqrt(2.0) + 0.5);
  for (int slot = 0; slot < kBlock; ++slot) {
    const double x = slot - 0.5 * (kBlock - 1);
    const int k = x > 0 ? slot - kBlock / 2 : kBlock / 2 - 1 - slot;
    double exact = 0;
    for (int p = 0; p < rope.planes(); ++p)
      exact += kOne * (z.re[p] * std::cos(x * rope.inv_freq[p]) +
                       z.im[p] * std::sin(x * rope.inv_freq[p]));
    int64_t sum = 0;
    for (int f = 0; f < turns.functions(); ++f)
      sum += int64_t{even[f]} * turns.Even(f, k) +
             (x > 0 ? 1 : -1) * int64_t{odd[f]} * turns.Odd(f, k);
    EXPECT_NEAR(static_cast<double>(sum), exact, tolerance) << "slot " << slot;
    EXPECT_LT(std::abs(sum), int64_t{1} << 31);
  }
}

TEST(PageTurns, FoldsWhereOneUnitIsKept) {
  const auto folded = [](int dim, double base) {
    return PageTurns(MakeRopeTable(RopePairing::kInterleaved, dim, dim, base, {}), kBlock).folded();
  };
  EXPECT_EQ(folded(64, 100000.0), 16);   // SmolLM2: 31.5 * 1e5^-(16/32) = 0.0996
  EXPECT_EQ(folded(128, 500000.0), 32);  // Llama 3: 31.5 * 5e5^-(32/64) = 0.0445
  EXPECT_EQ(folded(128, 10000.0), 48);   // Llama 2: 31.5 * 1e4^-(48/64) = 0.0315, and 0.315 at 32
  EXPECT_EQ(folded(64, 10000.0), 32);    // 0.315 at 16: none
}

TEST(PageTurns, BasisGivesThePlanes) {
  for (const double base : {10000.0, 100000.0, 500000.0, 1e6}) {
    for (const int dim : {32, 64, 96, 128}) {
      SCOPED_TRACE(testing::Message() << "base " << base << ", head size " << dim);
      const RopeTable rope = MakeRopeTable(RopePairing::kInterleaved, dim, dim, base, {});
      ExpectBasisGivesPlanes(rope, 0, 1);
      ExpectBasisGivesPlanes(rope, rope.planes() - 1,
                             2);  // all in the slowest: the largest coefficients
      ExpectBasisGivesPlanes(rope, rope.planes() / 2, 3);
    }
  }
}

TEST(PageTurns, PartOfAHeadMayTurn) {
  const RopeTable rope =
      MakeRopeTable(RopePairing::kHalfSplit, 128, 80, 100000.0, {});  // 40 planes
  ExpectBasisGivesPlanes(rope, 0, 4);
  ExpectBasisGivesPlanes(rope, 39, 5);
}

TEST(PageTurns, ManyPagesTurnAsOne) {
  const PageTurns turns(MakeRopeTable(RopePairing::kInterleaved, 64, 64, 100000.0, {}), kBlock);
  std::vector<int64_t> begins;
  for (int64_t i = 0; i < 40; ++i) begins.push_back(i * i * i * kBlock * 7);
  std::vector<float> all(begins.size() * 2 * turns.stride()), one(2 * turns.stride());
  ASSERT_EQ(turns.Turn(begins, all.data()), 40);
  for (size_t i = 0; i < begins.size(); ++i) {
    ASSERT_EQ(turns.Turn({&begins[i], 1}, one.data()), 1);
    EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin() + i * one.size())) << begins[i];
    for (int p = 0; p < 32; ++p) {  // three roundings of fp32 in the product of unit numbers
      const double angle = (static_cast<double>(begins[i]) + 31.5) * turns.inv_freq()[p];
      EXPECT_NEAR(one[p], std::cos(angle), 4 * 0x1p-23) << p;
      EXPECT_NEAR(one[32 + p], std::sin(angle), 4 * 0x1p-23) << p;
    }
  }
}

TEST(PageTurns, StopsWhereTheTablesEnd) {
  const PageTurns turns(MakeRopeTable(RopePairing::kInterleaved, 64, 64, 100000.0, {}), kBlock);
  const int64_t end = (int64_t{1} << 20) * kBlock;
  const int64_t begins[] = {0, end - kBlock, end, 64};
  std::vector<float> turn(4 * 2 * turns.stride(), 7.0f);
  EXPECT_EQ(turns.Turn(begins, turn.data()), 2);
  EXPECT_EQ(turn[2 * 2 * turns.stride()], 7.0f);
}

}  // namespace
}  // namespace kvring
