// SPDX-License-Identifier: Apache-2.0
// Trellis codes: tables, streams, the search, and the codecs that use them. What every codec must do is in codec_table_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <tuple>

#include "kernels/attention.h"
#include "kernels/codec/lloyd_max.h"
#include "kernels/codec/tc_bits.h"
#include "kernels/codec/trellis_encode.h"
#include "kernels/codec/trellis_stream.h"
#include "kernels/packed_queries.h"
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

// Codes and gains of up to 16 vectors z [rows][kLanes], from gains near the rms of the coefficients with bits.
struct Encoded {
  std::vector<uint8_t> codes, e, middle;

  Encoded(const std::vector<uint8_t>& bits, const std::vector<float>& weight,
          const std::vector<float>& z, int count)
      : codes(z.size(), 0xff), e(kLanes) {
    const int rows = static_cast<int>(bits.size());
    for (int l = 0; l < kLanes; ++l) {
      double squares = 0.0, coded = 0.0;
      for (int i = 0; i < rows; ++i) {
        if (bits[i] == 0) continue;
        squares += std::pow(double{z[i * kLanes + l]}, 2);
        coded += 1.0;
      }
      if (squares > 0.0) e[l] = NearestScale(static_cast<float>(std::sqrt(squares / coded)));
    }
    middle = e;
    EncodeTrellisGroup({rows, bits.data(), weight.data()}, z.data(), count, codes.data(), e.data());
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

// Mean squared errors at 0..6 bits that benchmarks/trellis_tables.cc finds for long rows of N(0,1), to three digits.
constexpr double kDistortion[] = {1.0, 0.301, 0.0834, 0.023, 0.00629, 0.00183, 0.000568};

TEST(TrellisTables, ErrorOfNormalNumbers) {
  for (int bits = 1; bits <= kTrellisMaxBits; ++bits) {
    const std::vector<uint8_t> row(64, static_cast<uint8_t>(bits));
    double error = 0.0;
    for (unsigned seed = 0; seed < 128; ++seed)
      error += TrellisLeastErrorRef(row, Ones(64), Normals(64, 40 + seed), 1.0) / (128 * 64);
    // 8192 squares of a spread near their mean: 1.6 % is one deviation.
    EXPECT_NEAR(error / kDistortion[bits], 1.0, 0.05) << bits;
    EXPECT_LT(kDistortion[bits], 0.9 * TcDistortion(bits)) << bits;
    EXPECT_GT(kDistortion[bits], std::exp2(-2.0 * bits)) << bits;  // Shannon's bound
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
      double best = HUGE_VAL;
      for (int e = encoded.middle[lane] - 2; e <= encoded.middle[lane] + 2; ++e)
        best = std::min(best, TrellisLeastErrorRef(bits, weight, own, std::exp2((e - 112) / 8.0)));
      // Each of the sums of `rows` squares is rounded; the squares' own roundings are relative to them.
      EXPECT_NEAR(error / best, 1.0, (rows + 8) * 2 * kUnitF32) << lane;
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
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(encoded.codes[i * kLanes], 0);
    EXPECT_EQ(encoded.codes[i * kLanes + 1], 0);
  }
  const std::vector<uint8_t> none(16, 0);
  EXPECT_EQ(Encoded(none, Ones(16), z, kLanes).codes, std::vector<uint8_t>(z.size(), 0));
}

CodecCase Case(const std::string& name, std::vector<std::string> flags, int dk = 64, int dv = 64) {
  CodecCase c;
  c.name = name, c.flags = std::move(flags);
  c.dk = dk, c.dv = dv;
  return c;
}

// As many bytes as the plain form in every page, and less error on the rows that both are made for.
TEST(Trellis, SameBytesLessError) {
  for (const char* name : {"rot4", "rot3", "rot2", "tc4", "tc3", "tc2.5", "tc2", "tc1.5"}) {
    CodecCase plain_case = Case(name, {}), trellis_case = Case(name, {"trellis"});
    if (FindCodec(name)->rate > 0) {
      plain_case.tables = trellis_case.tables =
          TestTcTables({1, 4, 2, 64, 64, 64}, {.mean = 0.0f, .uneven = 0.9f});
    }
    CodecHarness plain(plain_case), trellis(trellis_case);
    for (CodecHarness* h : {&plain, &trellis}) {
      h->MakeRows(320, 60, 0.0f);
      h->FreezeState();
      ASSERT_FALSE(h->EncodeAll());
    }
    EXPECT_EQ(trellis.codec().traits().id, std::string(name) + ":trellis");
    for (int head = 0; head < 2; ++head) {
      EXPECT_EQ(trellis.codec().PageSize(0, head).k, plain.codec().PageSize(0, head).k) << name;
      EXPECT_EQ(trellis.codec().PageSize(0, head).v, plain.codec().PageSize(0, head).v) << name;
    }
    // rot's coefficients all have b bits: a quarter less at least. In these tables of tc up to a third of the error is that of
    // coefficients without bits, which no code changes, and the error is not weighted as the code weighs it.
    const double share = FindCodec(name)->rate > 0 ? 0.95 : 0.8;
    EXPECT_LT(KeyError(trellis).mse_ratio(), share * KeyError(plain).mse_ratio()) << name;
    EXPECT_LT(ValueError(trellis).mse_ratio(), share * ValueError(plain).mse_ratio()) << name;
  }
}

// Weighted as it is minimised, tc's error falls by a fifth and more on rows that fit its tables: of values in the value domain,
// where all squares weigh the same.
TEST(Trellis, WeightedErrorOfTc) {
  for (const char* name : {"tc4", "tc3", "tc2"}) {
    double error[2] = {};
    for (const bool trellis : {false, true}) {
      CodecCase c =
          Case(name, trellis ? std::vector<std::string>{"trellis"} : std::vector<std::string>{});
      c.tables = TestTcTables({1, 4, 2, 64, 64, 64}, {.mean = 0.0f, .uneven = 0.9f});
      CodecHarness h(c);
      h.MakeRows(256, 61, 0.0f);
      ASSERT_FALSE(h.EncodeAll());
      const TcModel model(c.tables, {1, 4, 2, 64, 64, 64});
      const TcModel::Bits bits = model.Allocate(FindCodec(name)->rate);
      for (int head = 0; head < 2; ++head) {
        for (int64_t block = 1; block < 4; ++block) {
          const std::vector<float> v = h.Values(block, head);
          for (int t = 0; t < 64; ++t) {
            for (int i = 0; i < 64; ++i) {
              if (bits.values[head][i / 8] == 0) continue;  // the same in both
              const float y = h.value_rows()[((block * 64 + t) * 2 + head) * 64 + i];
              error[trellis] += std::pow(double{y} - v[t * 64 + i], 2);
            }
          }
        }
      }
    }
    EXPECT_LT(error[1], 0.8 * error[0]) << name;
  }
}

TEST(Trellis, RotReadsAsThePlainReading) {
  struct {
    const char* name;
    int bits;
    std::vector<std::string> flags;
    int dk, dv;
  } const forms[] = {{"rot3", 3, {"trellis"}, 64, 64},
                     {"rot4", 4, {"g64", "trellis"}, 128, 192},
                     {"rot3", 3, {"g64", "trellis"}, 100, 80},
                     {"rot2", 2, {"trellis"}, 192, 100}};
  for (const auto& form : forms) {
    CodecHarness h(Case(form.name, form.flags, form.dk, form.dv));
    ASSERT_TRUE(h.ok()) << h.error();
    h.MakeRows(192 + 30, 13, 2.0f);
    h.FreezeState();
    ASSERT_FALSE(h.EncodeAll());
    for (const int64_t block : {0, 2, 3}) {
      const PageView page = h.View(block, 1);
      RotPageRef ref{form.bits, 64, form.dk, form.dv, form.flags.size() > 1, &h.rope(), h.State(1)};
      std::vector<float> weights(form.dk);
      for (int i = 0; i < form.dk; ++i) weights[i] = h.State(1)[form.dk + i / 2];
      ref.weights = weights.data();
      ref.trellis = true;
      const std::vector<double> keys = RotKeysRef(ref, page), values = RotValuesRef(ref, page);
      const std::vector<float> kt = h.Keys(block, 1), v = h.Values(block, 1);
      for (int t = 0; t < page.tokens; ++t) {
        // As in rot_test.cc: numbers up to about 16 through log2(dim) + 8 roundings; values 8 through 4.
        for (int i = 0; i < form.dk; ++i)
          ASSERT_NEAR(kt[i * 64 + t], keys[t * form.dk + i], 16 * 16 * kUnitF32) << t << " " << i;
        for (int i = 0; i < form.dv; ++i)
          ASSERT_NEAR(v[t * form.dv + i], values[t * form.dv + i], 8 * 4 * kUnitF32) << t;
      }
    }
  }
}

TEST(Trellis, TcReadsAsThePlainReading) {
  for (const bool adapt : {false, true}) {
    for (const auto& [name, dk, dv] : {std::tuple("tc3", 64, 64), std::tuple("tc@2.25", 80, 100)}) {
      CodecCase c = Case(name, {"trellis"}, dk, dv);
      if (adapt) c.flags.push_back("adapt");
      c.tables = TestTcTables({1, 4, 2, dk, dv, 64}, {.mean = 2.0f, .uneven = 0.6f});
      CodecHarness h(c);
      ASSERT_TRUE(h.ok()) << h.error();
      h.MakeRows(adapt ? 600 : 150, 21, 1.0f);
      h.FreezeState();
      ASSERT_FALSE(h.EncodeAll());
      EXPECT_EQ(h.codec().traits().id, std::string(name) + (adapt ? ":adapt:trellis" : ":trellis"));
      const TcModel model(c.tables, {1, 4, 2, dk, dv, 64});
      const TcModel::Bits bits = model.Allocate(ParseTcRate(name));
      TcPageRef ref;
      ref.rope = &h.rope();
      ref.key = model.Key(0, 1), ref.value = model.Value(0, 1);
      ref.key_bits = bits.keys[1], ref.value_bits = bits.values[1];
      ref.state = h.State(1);
      ref.trellis = true;
      const PageView page = h.View(adapt ? 9 : 2, 1);
      const std::vector<double> keys = TcKeysRef(ref, page), values = TcValuesRef(ref, page);
      const std::vector<float> kt = h.Keys(adapt ? 9 : 2, 1);
      std::vector<float> v = h.Values(adapt ? 9 : 2, 1), unit(dk * dk, 0.0f);
      for (int i = 0; i < dk; ++i) unit[i * dk + i] = 1.0f;
      h.codec().PrepareQuery(0, 1, ref.state, unit.data(), dk, unit.data());
      h.codec().FinishOutput(0, 1, v.data(), page.tokens);
      // What tc_test.cc derives for the plain form, for rows below 16: chains of dim products through the basis and its inverse,
      // whose condition is (1 + uneven) / (1 - uneven) = 4; and with adapt U, whose rounding to fp16 keys see twice.
      const double tolerance =
          4 * (dk + 4) * kUnitF32 * 16 * 4 * std::sqrt(dk) + (adapt ? 2 * kUnitF16 * 16 * 4 : 0.0);
      for (int t = 0; t < page.tokens; ++t) {
        for (int i = 0; i < dk; ++i) {
          double score = 0.0;
          for (int j = 0; j < dk; ++j) score += double{unit[i * dk + j]} * kt[j * 64 + t];
          ASSERT_NEAR(score, keys[t * dk + i], tolerance) << name << " " << t << " " << i;
        }
        for (int i = 0; i < dv; ++i)
          ASSERT_NEAR(v[t * dv + i], values[t * dv + i], tolerance) << name << " " << t << " " << i;
      }
    }
  }
}

// Streams have no form for the integer dot products of AttendPacked: tiles are decoded instead.
TEST(Trellis, IsReadAsTiles) {
  const std::vector<float> q(64, 1.0f);
  const std::vector<int64_t> positions = {0};
  for (const bool trellis : {false, true}) {
    CodecCase c = Case("rot3", {"no-mean", "no-balance"});
    if (trellis) c.flags.push_back("trellis");
    CodecHarness h(c);
    AttendArgs args;
    args.positions = positions;
    args.raw_q = args.packed_q = q.data();
    PackedQueries queries;
    EXPECT_EQ(h.codec().PreparePacked(args, queries), !trellis);
  }
}

TEST(Trellis, Names) {
  EXPECT_NE(CodecHarness(Case("rot8", {"trellis"})).error().find("trellis"), std::string::npos);
  EXPECT_EQ(CodecHarness(Case("rot3", {"trellis", "g64"})).codec().traits().id, "rot3:g64:trellis");
  EXPECT_EQ(CodecHarness(Case("tc@2.3", {"static", "trellis"})).codec().traits().id,
            "tc@2.3:trellis");
}

}  // namespace
}  // namespace kvring
