// SPDX-License-Identifier: Apache-2.0
// Trellis codes: tables, streams, the search, and the codecs that use them. What every codec must do is in codec_table_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/codec/lloyd_max.h"
#include "kernels/codec/tc_bits.h"
#include "kernels/codec/trellis_encode.h"
#include "kernels/codec/trellis_stream.h"
#include "kernels/ref/codec_ref.h"
#include "kernels/ref/tc_ref.h"
#include "kernels/ref/trellis_ref.h"
#include "tests/kernels/codec/codec_harness.h"
#include "tests/kernels/simd_targets.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

const std::vector<uint8_t> kMixed = {6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0, 3, 1, 4, 0, 6, 2};

// Normal numbers with their tails, which NormalFloats' sums of twelve have not.
std::vector<float> Normals(int n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& value : x) value = normal(random);
  return x;
}

std::vector<float> Ones(size_t n) { return std::vector<float>(n, 1.0f); }

// Codes and gains of up to 16 vectors z [rows][kLanes].
struct Encoded {
  std::vector<uint8_t> codes, e;
  std::vector<int32_t> saturated;

  Encoded(const std::vector<uint8_t>& bits, const std::vector<float>& weight,
          const std::vector<float>& z, int count)
      : codes(z.size()), e(kLanes), saturated(kLanes) {
    EncodeTrellisGroup({static_cast<int>(bits.size()), bits.data(), weight.data()}, z.data(), count,
                       codes.data(), e.data(), saturated.data());
  }
};

// Weighted squared error of one lane, read the plain way.
double ErrorOf(const Encoded& encoded, const std::vector<uint8_t>& bits,
               const std::vector<float>& weight, const std::vector<float>& z, int lane) {
  const int rows = static_cast<int>(bits.size());
  const TrellisStream stream(bits, rows);
  std::vector<uint8_t> bytes(stream.bytes());
  stream.Put(encoded.codes.data() + lane, kLanes, bytes.data());
  double error = 0.0;
  for (int i = 0; i < rows; ++i) {
    if (bits[i] == 0) continue;
    const double number =
        ScaleValue(encoded.e[lane]) * TrellisNumberRef(bits, rows, bytes.data(), i);
    error += weight[i] * std::pow(z[i * kLanes + lane] - number, 2);
  }
  return error;
}

TEST(TrellisTables, ErrorOfNormalNumbers) {
  for (int bits = 1; bits <= kTrellisMaxBits; ++bits) {
    const std::vector<uint8_t> row(64, static_cast<uint8_t>(bits));
    double error = 0.0;
    for (unsigned seed = 0; seed < 128; ++seed)
      error += TrellisLeastErrorRef(row, Ones(64), Normals(64, 40 + seed), 1.0) / (128 * 64);
    // 8192 squares of a spread near their mean: 1.6 % is one deviation.
    EXPECT_NEAR(error / TrellisDistortion(bits), 1.0, 0.05) << bits;
    EXPECT_LT(TrellisDistortion(bits), 0.9 * TcDistortion(bits)) << bits;
    EXPECT_GT(TrellisDistortion(bits), std::exp2(-2.0 * bits)) << bits;  // Shannon's bound
  }
}

TEST(TrellisStream, HoldsTheBitsAndNothingElse) {
  EXPECT_EQ(TrellisStream(std::vector<uint8_t>(64, 3), 64).bytes(), 24);
  EXPECT_EQ(TrellisStream(std::vector<uint8_t>(100, 3), 100).bytes(), 38);  // 300 bits
  EXPECT_EQ(TrellisStream(std::vector<uint8_t>(100, 3), 64).bytes(), 24 + 14);
  EXPECT_EQ(TrellisStream(kMixed, 7).bytes(), TrellisBytesRef(kMixed, 7));
  EXPECT_EQ(TrellisStream(std::vector<uint8_t>(8, 0), 8).bytes(), 0);
}

TEST(TrellisStream, WindowsAreThePlainReading) {
  std::mt19937 random(50);
  for (const int group_rows : {5, 8, 20}) {
    const TrellisStream stream(kMixed, group_rows);
    for (int round = 0; round < 50; ++round) {
      std::vector<uint8_t> codes(kMixed.size()), bytes(stream.bytes() + 1, 0xa5);
      for (size_t i = 0; i < codes.size(); ++i) codes[i] = random() % (1u << kMixed[i]);
      stream.Put(codes.data(), 1, bytes.data());
      EXPECT_EQ(bytes.back(), 0xa5);
      for (size_t i = 0; i < codes.size(); ++i) {
        const int c = static_cast<int>(i), window = stream.Window(bytes.data(), c);
        EXPECT_EQ(window >> (kTrellisWindow - kMixed[i]), codes[i]);  // new bits on top
        const TrellisTable& table = TrellisTables()[kMixed[i]];
        EXPECT_EQ(double{table.unit} * table.level[window],
                  TrellisNumberRef(kMixed, group_rows, bytes.data(), c));
      }
    }
  }
}

TEST(TrellisStream, TilesAreThePlainReading) {
  constexpr int kBlock = 48, kTokens = 19;
  std::mt19937 random(51);
  std::vector<uint8_t> bits;
  for (int i = 0; i < 100; ++i) bits.push_back(random() % 7);
  const TrellisStream stream(bits, 64);
  std::vector<uint8_t> part(stream.bytes() * kBlock + 16);  // gains follow
  for (uint8_t& byte : part) byte = static_cast<uint8_t>(random());
  const std::vector<float> scale = NormalFloats(kBlock, 52), factor = NormalFloats(100, 53);
  ForEachSimdTarget([&](int64_t) {
    for (const auto& [first, rows] : {std::pair(0, 64), std::pair(64, 36), std::pair(3, 5)}) {
      std::vector<float> kt(rows * kBlock, 1.0f), v(kTokens * 101, -1.0f);
      stream.AddKeys(part.data(), first, rows, kBlock, scale.data(), kt.data());
      stream.ReadValues(part.data(), first, rows, kTokens, scale.data(), &factor[first], 101,
                        v.data());
      for (int t = 0; t < kBlock; ++t) {
        for (int r = 0; r < rows; ++r) {
          const int i = first + r, window = stream.Window(&part[t * stream.bytes()], i);
          const float number = TrellisTables()[bits[i]].number[window];
          ASSERT_EQ(kt[r * kBlock + t], 1.0f + scale[t] * number) << i;
          if (t < kTokens) {
            ASSERT_EQ(v[t * 101 + r], scale[t] * (factor[i] * number)) << i;
          }
        }
        if (t < kTokens) {
          ASSERT_EQ(v[t * 101 + rows], -1.0f);
        }
      }
    }
  });
}

// No codes at the chosen gain leave less, and no gain of the five near the rms does.
TEST(TrellisEncode, FindsTheLeastError) {
  const std::vector<uint8_t> plain(64, 3);
  for (const std::vector<uint8_t>& bits : {kMixed, plain}) {
    const int rows = static_cast<int>(bits.size());
    std::vector<float> weight(rows), z = NormalFloats(rows * kLanes, 54);
    for (int i = 0; i < rows; ++i) weight[i] = static_cast<float>(1 / TcDistortion(bits[i]));
    for (int l = 0; l < kLanes; ++l) {
      for (int i = 0; i < rows; ++i) z[i * kLanes + l] *= std::exp2(l - 8.0f);
    }
    const Encoded encoded(bits, weight, z, kLanes);
    for (int lane = 0; lane < kLanes; ++lane) {
      std::vector<float> own(rows);
      for (int i = 0; i < rows; ++i) own[i] = z[i * kLanes + lane];
      const double error = ErrorOf(encoded, bits, weight, z, lane);
      double squares = 0.0, best = HUGE_VAL;
      int coded = 0;
      for (int i = 0; i < rows; ++i) {
        squares += bits[i] > 0 ? double{own[i]} * own[i] : 0.0;
        coded += bits[i] > 0;
      }
      const int middle = NearestScale(static_cast<float>(std::sqrt(squares / coded)));
      for (int e = middle - 2; e <= middle + 2; ++e)
        best = std::min(best, TrellisLeastErrorRef(bits, weight, own, std::exp2((e - 112) / 8.0)));
      // Each of the sums of `rows` squares is rounded; the squares' own roundings are relative to them.
      EXPECT_NEAR(error / best, 1.0, (rows + 8) * 2 * kUnitF32) << lane;
      EXPECT_EQ(encoded.saturated[lane], 0);
    }
  }
}

TEST(TrellisEncode, LanesDoNotDependOnCompany) {
  const std::vector<float> weight = NormalFloats(20, 55);
  std::vector<float> positive(20);
  for (int i = 0; i < 20; ++i) positive[i] = std::fabs(weight[i]) + 0.1f;
  const std::vector<float> z = NormalFloats(20 * kLanes, 56);
  std::vector<uint8_t> first;
  ForEachSimdTarget([&](int64_t) {
    const Encoded all(kMixed, positive, z, kLanes);
    for (int lane = 0; lane < kLanes; ++lane) {
      std::vector<float> alone(z.size(), 0.0f);
      for (int i = 0; i < 20; ++i) alone[i * kLanes] = z[i * kLanes + lane];
      const Encoded one(kMixed, positive, alone, 1);
      EXPECT_EQ(one.e[0], all.e[lane]);
      for (int i = 0; i < 20; ++i) EXPECT_EQ(one.codes[i * kLanes], all.codes[i * kLanes + lane]);
    }
    if (first.empty()) first = all.codes;
    EXPECT_EQ(first, all.codes);
  });
}

TEST(TrellisEncode, ZerosSmallAndLarge) {
  std::vector<uint8_t> bits(16, 3);
  std::fill(bits.begin() + 8, bits.end(), uint8_t{0});
  std::vector<float> z(16 * kLanes, 0.0f);
  for (int i = 0; i < 16; ++i) {
    z[i * kLanes + 1] = 0x1p-40f;                // far below the smallest gain: nearer to zero
    z[i * kLanes + 2] = 0x1p30f;                 // beyond the largest
    z[i * kLanes + 3] = i < 8 ? 0.0f : 1000.0f;  // only where there are no bits
  }
  const Encoded encoded(bits, Ones(16), z, kLanes);
  EXPECT_EQ(encoded.e[0], 0);
  EXPECT_EQ(encoded.e[1], 0);
  EXPECT_EQ(encoded.e[2], 255);
  EXPECT_EQ(encoded.e[3], 0);
  EXPECT_EQ(encoded.saturated[2], 8);
  EXPECT_EQ(encoded.saturated[0] + encoded.saturated[1] + encoded.saturated[3], 0);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(encoded.codes[i * kLanes + 1], 0);
  const std::vector<uint8_t> none(16, 0);
  EXPECT_EQ(Encoded(none, Ones(16), z, kLanes).e, std::vector<uint8_t>(kLanes, 0));
}

CodecCase Case(const std::string& name, std::vector<std::string> flags, int dk = 64, int dv = 64) {
  CodecCase c;
  c.name = name, c.flags = std::move(flags);
  c.dk = dk, c.dv = dv;
  return c;
}

// As many bytes as the plain form, and a quarter less error on the rows that both are made for.
TEST(Trellis, SameBytesLessError) {
  for (const char* name : {"rot4", "rot3", "rot2", "tc4", "tc3", "tc2.5", "tc2", "tc1.5"}) {
    CodecCase plain_case = Case(name, {}), trellis_case = Case(name, {"trellis"});
    if (FindCodec(name)->rate > 0) {
      const KvShape shape{1, 4, 2, 64, 64, 64};
      plain_case.tables = trellis_case.tables = TestTcTables(shape, {.mean = 0.0f, .uneven = 0.9f});
    }
    CodecHarness plain(plain_case), trellis(trellis_case);
    for (CodecHarness* h : {&plain, &trellis}) {
      h->MakeRows(320, 60, 0.0f);
      h->FreezeState();
      ASSERT_FALSE(h->EncodeAll());
    }
    EXPECT_EQ(trellis.codec().traits().id, std::string(name) + ":trellis");
    int64_t bytes = 0, plain_bytes = 0;
    for (int head = 0; head < 2; ++head) {
      bytes += trellis.codec().PageSize(0, head).total();
      plain_bytes += plain.codec().PageSize(0, head).total();
    }
    EXPECT_EQ(bytes, plain_bytes) << name;
    EXPECT_LT(KeyError(trellis).mse_ratio(), 0.85 * KeyError(plain).mse_ratio()) << name;
    EXPECT_LT(ValueError(trellis).mse_ratio(), 0.85 * ValueError(plain).mse_ratio()) << name;
  }
}

}  // namespace
}  // namespace kvring
