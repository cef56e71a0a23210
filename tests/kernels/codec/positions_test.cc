// SPDX-License-Identifier: Apache-2.0
// RoPE tables and angles, rotation of pages, and what a query sees.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/codec.h"
#include "kernels/codec/page_angles.h"
#include "kernels/rope.h"
#include "kernels/sincos.h"
#include "kernels/visibility.h"

namespace kvring {
namespace {

TEST(SinCos, MatchesTheLibrary) {
  std::mt19937_64 random(1);
  for (int exponent = -20; exponent <= 26; ++exponent) {
    for (int i = 0; i < 2000; ++i) {
      const double x = std::ldexp(std::uniform_real_distribution<double>(-1, 1)(random), exponent);
      const SinCosResult r = SinCos(x);
      ASSERT_NEAR(r.sin, std::sin(x), 1e-13) << x;
      ASSERT_NEAR(r.cos, std::cos(x), 1e-13) << x;
    }
  }
  EXPECT_EQ(SinCos(0.0).sin, 0.0);
  EXPECT_EQ(SinCos(0.0).cos, 1.0);
}

// The worked example of kvquant 10, T5: half-split pairs, base 10^4.
TEST(Rope, WorkedExample) {
  const RopeTable table = MakeRopeTable(RopePairing::kHalfSplit, 4, 4, 10000.0, {});
  float angles[4], k[] = {1, 2, 3, 4}, q[] = {0.5f, -1, 0.25f, 2};
  RopeAngles(table, 2, angles);
  RopeRotate(table, angles, k);
  const float expected[] = {-3.144039f, 1.919605f, -0.339143f, 4.039197f};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(k[i], expected[i], 1e-6);  // printed to 6 places
  RopeAngles(table, 5, angles);
  RopeRotate(table, angles, q);
  float score = 0;
  for (int i = 0; i < 4; ++i) score += q[i] * k[i];
  EXPECT_NEAR(score, 4.696246f, 3e-6);
}

TEST(Rope, InterleavedIsAPermutationOfHalfSplit) {
  const RopeTable a = MakeRopeTable(RopePairing::kInterleaved, 10, 8, 10000.0, {});
  const RopeTable b = MakeRopeTable(RopePairing::kHalfSplit, 10, 8, 10000.0, {});
  float x[10], y[10], angles[8];
  for (int p = 0; p < 4; ++p) {
    x[a.First(p)] = y[b.First(p)] = 1.0f + p;
    x[a.Second(p)] = y[b.Second(p)] = -0.5f * p;
  }
  x[8] = y[8] = 7, x[9] = y[9] = 8;
  RopeAngles(a, 123, angles);
  RopeRotate(a, angles, x);
  RopeRotate(b, angles, y);
  for (int p = 0; p < 4; ++p) {
    EXPECT_EQ(x[a.First(p)], y[b.First(p)]);
    EXPECT_EQ(x[a.Second(p)], y[b.Second(p)]);
  }
  EXPECT_EQ(x[8], 7.0f);  // channels beyond the rotary part stay
  EXPECT_EQ(y[9], 8.0f);
}

TEST(Rope, FactorsScaleAndInverse) {
  RopeTable table = MakeRopeTable(RopePairing::kInterleaved, 8, 8, 500000.0, {1, 2, 4, 8});
  for (int p = 0; p < 4; ++p)
    EXPECT_NEAR(table.inv_freq[p] * std::pow(500000.0, p / 4.0) * (1 << p), 1.0, 1e-12);
  table.attention_scale = 1.25f;
  float x[8] = {1, -2, 3, -4, 5, -6, 7, -8}, angles[8];
  RopeAngles(table, 1'000'000, angles);
  RopeRotate(table, angles, x);
  float square = 0;
  for (float value : x) square += value * value;
  EXPECT_NEAR(square, 204 * 1.25 * 1.25, 204 * 8 * 0x1p-24 * 2);
  RopeRotateBack(table, angles, x);
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(x[i], i % 2 ? -(i + 1) : i + 1, 8 * 4 * 0x1p-23);
}

// Rotation by page (angle addition) is the rotation by token, at any distance.
TEST(PageAngles, MatchRotationOfEachToken) {
  for (const RopePairing pairing : {RopePairing::kInterleaved, RopePairing::kHalfSplit}) {
    RopeTable table = MakeRopeTable(pairing, 64, 48, 100000.0, {});
    table.attention_scale = 1.1f;
    const PageAngles angles(table, 64);
    std::vector<float> x(64), pre(64), tile(64 * 64), spread(64 * 64), base(48), own(48), y(64);
    for (int i = 0; i < 64; ++i) x[i] = 0.1f * i - 3, pre[i] = i % 3 == 0 ? -1.0f : 0.5f;
    for (const int64_t begin : {0LL, 64LL, 131'072LL, 9'999'936LL}) {
      for (int i = 0; i < 64; ++i) std::fill_n(&tile[i * 64], 64, x[i]);
      RopeAngles(table, begin, base.data());
      angles.RotateTile(base.data(), tile.data());
      angles.SpreadTile(base.data(), x.data(), pre.data(), 50, spread.data());
      for (int t = 0; t < 64; ++t) {
        std::vector<float> expected = x;
        RopeAngles(table, begin + t, own.data());
        RopeRotate(table, own.data(), expected.data());
        angles.RotateAt(base.data(), t, x.data(), y.data());
        for (int i = 0; i < 64; ++i) {
          // Numbers up to 5; fp32 cosines and sines of base and offset, products and sums: 6 roundings.
          ASSERT_NEAR(tile[i * 64 + t], expected[i], 5 * 6 * 0x1p-24)
              << begin << " " << t << " " << i;
          ASSERT_NEAR(y[i], expected[i], 5 * 6 * 0x1p-24);
          ASSERT_EQ(spread[i * 64 + t], t < 50 ? y[i] * pre[i] : 0.0f);
        }
      }
    }
  }
}

CodecTraits Rot() {
  CodecTraits traits;
  traits.sink_tokens = 4, traits.prefix_tokens = 128, traits.k_scope = ParamScope::kPrefix;
  return traits;
}

CodecTraits PerPage() {
  CodecTraits traits;
  traits.sink_tokens = 4, traits.k_scope = ParamScope::kPage;
  return traits;
}

bool Exact(Visibility kind, const CodecTraits& codec, int64_t query, int64_t block_begin,
           int64_t chunk_begin = 0) {
  return BlockIsExact({kind, 512}, codec, 64, query, block_begin, chunk_begin);
}

TEST(Visibility, ExactCell) {
  EXPECT_TRUE(Exact(Visibility::kExactCell, Rot(), 1023, 512));
  EXPECT_FALSE(Exact(Visibility::kExactCell, Rot(), 1023, 448));
  EXPECT_FALSE(Exact(Visibility::kExactCell, Rot(), 1024, 960));
  EXPECT_TRUE(Exact(Visibility::kExactCell, Rot(), 127, 0));
}

TEST(Visibility, PrefixAndPagesDecideWithoutCells) {
  EXPECT_TRUE(Exact(Visibility::kPacked, Rot(), 127, 0));
  EXPECT_FALSE(Exact(Visibility::kPacked, Rot(), 128, 64));
  EXPECT_FALSE(Exact(Visibility::kPacked, Rot(), 200,
                     192));  // its own, incomplete block: packed token by token
  EXPECT_TRUE(Exact(Visibility::kPacked, PerPage(), 254, 192));
  EXPECT_FALSE(Exact(Visibility::kPacked, PerPage(), 255, 192));
  EXPECT_FALSE(Exact(Visibility::kPacked, PerPage(), 254, 128));
}

TEST(Visibility, ChunkTeacherAndLossless) {
  EXPECT_TRUE(Exact(Visibility::kExactChunk, Rot(), 1000, 960, 960));
  EXPECT_FALSE(Exact(Visibility::kExactChunk, Rot(), 1000, 896, 960));
  EXPECT_FALSE(Exact(Visibility::kExactChunk, Rot(), 1000, 896, 900));  // covered in part only
  for (int64_t query : {0, 63, 127, 600})
    EXPECT_FALSE(Exact(Visibility::kTeacher, Rot(), query, 0));
  CodecTraits f16;
  f16.lossless = true;
  EXPECT_FALSE(Exact(Visibility::kExactCell, f16, 10, 0));
}

TEST(Visibility, SinksAreExactOneByOne) {
  const VisibilityRule rule{Visibility::kPacked, 512};
  EXPECT_TRUE(IsExact(rule, Rot(), 64, 5000, 3, 0));
  EXPECT_FALSE(IsExact(rule, Rot(), 64, 5000, 4, 0));
  EXPECT_TRUE(IsExact({Visibility::kTeacher, 512}, Rot(), 64, 5000, 0, 0));
  EXPECT_TRUE(IsExact({Visibility::kExactCell, 512}, Rot(), 64, 5100, 5000, 0));
}

}  // namespace
}  // namespace kvring
