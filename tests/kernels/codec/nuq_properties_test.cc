// SPDX-License-Identifier: Apache-2.0
// Properties P1-P7, P10, P11, P15 of kvquant 10: what nuq stores, over bits, outliers, head sizes, forms and hostile rows.
// Attention over its pages (P4, P8, P9, P12, P14) is in nuq_attention_test.cc.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "kernels/codec/bit_words.h"
#include "tests/kernels/codec/codec_harness.h"
#include "tests/kernels/codec/nuq_oracle.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

const char* const kNames[] = {"nuq4",      "nuq3",      "nuq2",      "nuq4-0.1%",
                              "nuq3-0.1%", "nuq2-0.1%", "nuq4-0.5%", "nuq3-0.5%",
                              "nuq2-0.5%", "nuq4-1%",   "nuq3-1%",   "nuq2-1%"};

// The forms whose datatype comes from the tables.
const std::vector<std::vector<std::string>> kForms = {
    {},
    {"token"},
    {"exact"},
    {"paper"},
    {"cap"},
    {"cap", "exact"},
    {"qnorm"},
    {"qnorm", "paper"},
    {"token-keys"},
    {"token-keys", "paper"},
    {"channel-values"},
    {"channel-values", "exact"},
    {"channel-values", "token"},
    {"post-rope", "qnorm"},
};

// Rows that codecs meet, and rows that they should survive.
enum class Kind { kNormal, kHeavyTails, kOneHead, kFewNumbers, kHuge, kTiny, kZeros };
constexpr Kind kKinds[] = {Kind::kNormal, Kind::kHeavyTails, Kind::kOneHead, Kind::kFewNumbers,
                           Kind::kHuge,   Kind::kTiny,       Kind::kZeros};

float Number(Kind kind, int head, float normal, uint32_t bits) {
  switch (kind) {
    case Kind::kNormal:
      return normal;
    case Kind::kHeavyTails:
      return bits % 23 == 0 ? 20 * normal : normal;
    case Kind::kOneHead:  // outliers of all tokens crowd into head 0: its slots run out
      return head == 0 ? 3 * normal : 0.5f * normal;
    case Kind::kFewNumbers:  // ties, at the ends of ranges as well
      return static_cast<float>(static_cast<int>(bits % 5) - 2);
    case Kind::kHuge:
      return bits % 7 == 0 ? 65504.0f : bits % 7 == 1 ? -65504.0f : 1000 * normal;
    case Kind::kTiny:  // subnormal halves
      return static_cast<float>(static_cast<int>(bits % 9) - 4) * 0x1p-24f;
    case Kind::kZeros:
      return bits % 2 == 0 ? 0.0f : -0.0f;
  }
  return 0.0f;
}

// About N(0, 1), from one generator for all: the same rows on every machine.
float Normal(std::mt19937* random) {
  float sum = -2.0f;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>((*random)() >> 8) * 0x1p-24f;
  return sum * 1.7320508f;  // four uniform numbers: variance 1/3
}

void SetKind(CodecHarness* h, Kind kind, int64_t tokens, uint32_t seed) {
  std::mt19937 random(seed);
  const auto next = [&](int64_t, int64_t head, int) {
    const float normal = Normal(&random);
    return RoundHalf(Number(kind, static_cast<int>(head), normal, random()));
  };
  h->SetRows(tokens, next, next);
}

std::string Label(const CodecCase& c, Kind kind) {
  std::string label = c.name;
  for (const std::string& flag : c.flags) label += ":" + flag;
  return label + " d " + std::to_string(c.dk) + " heads " + std::to_string(c.kv_heads) + " rows " +
         std::to_string(static_cast<int>(kind));
}

CodecCase Still(const std::string& name, std::vector<std::string> flags, int d, int heads) {
  CodecCase c;
  c.name = name;
  c.flags = std::move(flags);
  c.dk = c.dv = d, c.kv_heads = heads, c.query_heads = heads;
  c.still = true;
  return c;
}

// Tables that were fitted to N(0, 1): what comes may be anything.
CodecCase Fixed(CodecCase c) {
  c.tables = TestNuqTables({1, c.query_heads, c.kv_heads, c.dk, c.dv, c.block}, c.flags, c.name);
  return c;
}

const std::vector<float>& KeyRows(CodecHarness& h) {
  return h.codec().traits().key_domain == KeyDomain::kPreRope ? h.raw_key_rows() : h.key_rows();
}

NuqOracle OracleOf(CodecHarness& h) {
  return NuqOracle(h.shape(), h.tables(), h.codec().traits().sink_tokens);
}

// Decoded tiles of all blocks against the oracle's rows, bit for bit; sinks as the rows themselves.
void ExpectRestored(CodecHarness& h, const NuqSide& keys, const NuqSide& values) {
  const CodecCase& c = h.shape();
  const int sinks = h.codec().traits().sink_tokens;
  int64_t wrong = 0;
  for (int64_t block = 0; block * c.block < h.tokens(); ++block) {
    for (int head = 0; head < c.kv_heads; ++head) {
      const std::vector<float> kt = h.Keys(block, head), v = h.Values(block, head);
      for (int t = 0; t < c.block; ++t) {
        const int64_t token = block * c.block + t, row = token * c.kv_heads + head;
        for (int i = 0; i < c.dk; ++i) {
          const float want = token >= h.tokens() ? 0.0f
                             : token < sinks     ? KeyRows(h)[row * c.dk + i]
                                                 : keys.restored[row * c.dk + i];
          wrong += kt[i * c.block + t] != want;
        }
        for (int i = 0; i < c.dv; ++i) {
          const float want = token >= h.tokens() ? 0.0f
                             : token < sinks     ? h.value_rows()[row * c.dv + i]
                                                 : values.restored[row * c.dv + i];
          wrong += v[t * c.dv + i] != want;
        }
      }
    }
  }
  EXPECT_EQ(wrong, 0) << "numbers differ from the plain encoder's";
}

void CheckAgainstOracle(const CodecCase& c, Kind kind, uint32_t seed) {
  SCOPED_TRACE(Label(c, kind));
  CodecHarness h(c);
  ASSERT_TRUE(h.ok()) << h.error();
  SetKind(&h, kind, 64 + 37, seed);
  ASSERT_FALSE(h.EncodeAll(29));
  const NuqOracle oracle = OracleOf(h);
  const NuqSide keys = oracle.Keys(KeyRows(h)), values = oracle.Values(h.value_rows());
  ExpectRestored(h, keys, values);
  EXPECT_EQ(h.overflow(), keys.overflow + values.overflow);
  EXPECT_EQ(h.saturated(), keys.saturated + values.saturated);  // P15
}

TEST(NuqProperties, StoresWhatThePlainEncoderStores) {
  uint32_t seed = 100;
  for (const char* name : kNames) {
    for (const int d : {64, 96, 128, 256})
      CheckAgainstOracle(Fixed(Still(name, {}, d, 2)), Kind::kHeavyTails, ++seed);
  }
  for (const auto& form : kForms) {
    for (const char* name : {"nuq4-0.5%", "nuq3-1%", "nuq2-1%", "nuq3"})
      CheckAgainstOracle(Fixed(Still(name, form, 64, 3)), Kind::kHeavyTails, ++seed);
  }
}

TEST(NuqProperties, F05_HostileRowsAreStoredByTheSameRules) {
  uint32_t seed = 500;
  for (const auto& form : kForms) {
    for (const Kind kind : kKinds) {
      CheckAgainstOracle(Fixed(Still("nuq3-1%", form, 64, 2)), kind, ++seed);
      CheckAgainstOracle(Still("nuq2-0.5%", form, 64, 2), kind,
                         ++seed);  // tables of these very rows
    }
  }
}

TEST(NuqProperties, F05_SingleToken) {
  for (const auto& form : kForms) {
    std::vector<std::string> flags = form;
    flags.push_back("sinks0");
    const CodecCase c = Fixed(Still("nuq3-1%", flags, 64, 2));
    SCOPED_TRACE(Label(c, Kind::kNormal));
    CodecHarness h(c);
    ASSERT_TRUE(h.ok()) << h.error();
    SetKind(&h, Kind::kHeavyTails, 1, 7);
    ASSERT_FALSE(h.EncodeAll());
    const NuqOracle oracle = OracleOf(h);
    ExpectRestored(h, oracle.Keys(KeyRows(h)), oracle.Values(h.value_rows()));
  }
}

// P1: any cut into calls gives the same bytes, over rubbish as over zeros; and a block that is encoded again from some slot
// on (after a cut of the sequence) is what it was.
TEST(NuqProperties, P1_AppendEqualsBulk) {
  for (const char* name : kNames) {
    for (const auto& form : kForms) {
      if (!form.empty() && std::string(name).find("-1%") == std::string::npos) continue;
      for (const Kind kind : {Kind::kHeavyTails, Kind::kOneHead, Kind::kFewNumbers}) {
        const CodecCase c = Fixed(Still(name, form, 64, 2));
        SCOPED_TRACE(Label(c, kind));
        CodecHarness bulk(c), single(c), odd(c);
        for (CodecHarness* h : {&bulk, &single, &odd}) {
          ASSERT_TRUE(h->ok()) << h->error();
          SetKind(h, kind, 128 + 11, 3);
        }
        ASSERT_FALSE(bulk.EncodeAll());
        ASSERT_FALSE(single.EncodeAll(1));
        ASSERT_FALSE(odd.EncodeAll(13));
        ASSERT_EQ(bulk.pages(), single.pages());
        ASSERT_EQ(bulk.pages(), odd.pages());
        EXPECT_EQ(bulk.saturated(), single.saturated());
        EXPECT_EQ(bulk.overflow(), single.overflow());
        for (const int first : {0, 1, 30, 63}) {
          ASSERT_FALSE(odd.EncodeSlots(1, first, 64 - first));
          ASSERT_EQ(bulk.pages(), odd.pages()) << first;
        }
      }
    }
  }
}

// P2, in its own words: what has an entry is off by half a unit of its residual's last place at most.
TEST(NuqProperties, P2_OutliersRestore) {
  for (const char* name : kNames) {
    for (const int d : {64, 96, 128, 256}) {
      const CodecCase c = Fixed(Still(name, {"exact"}, d, 2));
      CodecHarness h(c);
      SetKind(&h, Kind::kHeavyTails, 64, 11);
      ASSERT_FALSE(h.EncodeAll());
      const NuqOracle oracle = OracleOf(h);
      const std::vector<float>&lo = oracle.Table("k_lo"), &hi = oracle.Table("k_hi"),
            &cent = oracle.Table("k_cent");
      int64_t outliers = 0;
      for (int head = 0; head < 2; ++head) {
        const std::vector<float> kt = h.Keys(0, head);
        for (int i = 0; i < d; ++i) {
          const int channel = head * d + i;
          const float z = (hi[channel] + lo[channel]) / 2, s = (hi[channel] - lo[channel]) / 2;
          for (int t = 4; t < 64; ++t) {
            const float x = KeyRows(h)[(t * 2 + head) * d + i],
                        end = x > hi[channel] ? cent.back() : cent.front();
            if (x >= lo[channel] && x <= hi[channel]) continue;
            ++outliers;
            const double residual = std::abs(double{x} - (double{s} * end + z));
            if (h.shape().name.find('%') == std::string::npos) {  // dense only: the end itself
              EXPECT_NEAR(kt[i * 64 + t], s * end + z, 2 * kUnitF32 * (std::abs(s) + std::abs(z)));
              continue;
            }
            // fp32: the LUT entry (two roundings), the difference, the sum.
            const double allowed = std::max(residual * kUnitF16, 0x1p-25) +
                                   4 * kUnitF32 * (std::abs(x) + std::abs(s) + std::abs(z));
            ASSERT_NEAR(kt[i * 64 + t], x, allowed);
          }
        }
      }
      EXPECT_GT(outliers, 60 * 2 * d / 100) << name;  // the rows do have some
    }
  }
}

// The datatypes of 7.1 that need no centroids: an even grid, and what tests/golden/codec/tables.py prints.
std::vector<float> FixedNumbers(const std::string& datatype, int bits) {
  static const std::map<int, std::vector<float>> normal = {
      {2, {-1.0f, 0.0f, 0.435818165f, 1.0f}},
      {3,
       {-1.0f, -0.535022708f, -0.246931432f, 0.0f, 0.18333748f, 0.381993954f, 0.622985742f, 1.0f}},
      {4,
       {-1.0f, -0.696192806f, -0.525072959f, -0.394917426f, -0.284441309f, -0.184773403f,
        -0.091049976f, 0.0f, 0.079580315f, 0.160930144f, 0.246112251f, 0.337915137f, 0.440709732f,
        0.562616888f, 0.722956644f, 1.0f}}};
  if (datatype == "nf") return normal.at(bits);
  std::vector<float> even;
  for (int j = 0; j < 1 << bits; ++j) even.push_back(2.0f * j / ((1 << bits) - 1) - 1);
  return even;
}

TEST(NuqProperties, FixedDatatypes) {
  for (const char* name : {"nuq4", "nuq3", "nuq2"}) {
    for (const char* datatype : {"int", "nf"}) {
      CodecCase c = Fixed(Still(name, {datatype, "sinks0"}, 64, 1));
      c.tables = WithNuqTensors(
          *c.tables, name,
          {{"k_lo", std::vector<float>(64, -2.0f)}, {"k_hi", std::vector<float>(64, 6.0f)}});
      CodecHarness h(c);
      ASSERT_TRUE(h.ok()) << h.error();
      // A sweep over [-2, 6]: z = 2, s = 4.
      h.SetRows(
          64, [](int64_t t, int64_t, int i) { return -2.0f + 8.0f * (t * 64 + i) / 4095; },
          [](int64_t, int64_t, int) { return 0.0f; });
      ASSERT_FALSE(h.EncodeAll());
      const std::vector<float> numbers = FixedNumbers(datatype, FindCodec(name)->bits);
      const std::vector<float> kt = h.Keys(0, 0);
      std::vector<int> met(numbers.size(), 0);
      for (int t = 0; t < 64; ++t) {
        for (int i = 0; i < 64; ++i) {
          const float x = h.raw_key_rows()[t * 64 + i], u = (x - 2) / 4;
          size_t best = 0;
          for (size_t j = 1; j < numbers.size(); ++j) {
            if (std::abs(u - numbers[j]) < std::abs(u - numbers[best])) best = j;
          }
          // Three roundings of numbers up to 6; where x is between two numbers, either may be the nearer one.
          const float near = 3 * 8 * 0x1p-24f;
          ASSERT_NEAR(std::abs(kt[i * 64 + t] - x), 4 * std::abs(u - numbers[best]), 2 * near)
              << name << datatype;
          for (size_t j = 0; j < numbers.size(); ++j)
            met[j] += std::abs(kt[i * 64 + t] - (4 * numbers[j] + 2)) <= near;
        }
      }
      EXPECT_EQ(std::accumulate(met.begin(), met.end(), 0), 4096) << name << datatype;
      EXPECT_EQ(std::count(met.begin(), met.end(), 0), 0) << name << datatype;
    }
  }
}

// P3: inliers are off by half a gap at most, or by what an end cannot reach; on both sides and in every datatype.
TEST(NuqProperties, P3_InliersRestore) {
  for (const char* name : kNames) {
    for (const std::string datatype : {"", "int", "nf"}) {
      std::vector<std::string> flags = {"token"};
      if (!datatype.empty()) flags.push_back(datatype);
      const CodecCase c = Fixed(Still(name, flags, 96, 2));
      CodecHarness h(c);
      ASSERT_TRUE(h.ok()) << h.error();
      SetKind(&h, Kind::kNormal, 64, 13);
      ASSERT_FALSE(h.EncodeAll());
      const NuqOracle oracle = OracleOf(h);
      const auto worst = [&](const std::string& calibrated) {
        const std::vector<float> cent = datatype.empty()
                                            ? oracle.Table(calibrated)
                                            : FixedNumbers(datatype, FindCodec(name)->bits);
        double gap = std::max(1.0 - cent.back(), 1.0 + cent.front());
        for (size_t j = 1; j < cent.size(); ++j) gap = std::max(gap, (cent[j] - cent[j - 1]) / 2.0);
        return gap;
      };
      const double k_worst = worst("k_cent"), v_worst = worst("v_cent_token");
      const std::vector<float>&lo = oracle.Table("k_lo"), &hi = oracle.Table("k_hi");
      for (int head = 0; head < 2; ++head) {
        const std::vector<float> kt = h.Keys(0, head), v = h.Values(0, head);
        for (int t = 4; t < 64; ++t) {
          const float* const token = &h.value_rows()[t * 2 * 96];
          std::vector<float> sorted(token, token + 2 * 96);
          std::sort(sorted.begin(), sorted.end());
          const int m = oracle.PerSide(96);
          const double s_v = (sorted[sorted.size() - 1 - m] - sorted[m]) / 2.0;
          for (int i = 0; i < 96; ++i) {
            const int channel = head * 96 + i;
            const float x = KeyRows(h)[(t * 2 + head) * 96 + i];
            const double s = (hi[channel] - lo[channel]) / 2.0;
            if (x >= lo[channel] && x <= hi[channel]) {
              ASSERT_NEAR(kt[i * 64 + t], x, s * (k_worst + 8 * kUnitF32)) << name << datatype;
            }
            // z and s of values are rounded to fp16: that much of the range and of the middle is lost.
            if (token[channel] >= sorted[m] && token[channel] <= sorted[sorted.size() - 1 - m]) {
              ASSERT_NEAR(v[t * 96 + i], token[channel], s_v * (v_worst + 4 * kUnitF16))
                  << name << datatype;
            }
          }
        }
      }
    }
  }
}

// The same datatype with one more point nowhere restores an inlier worse.
TEST(NuqProperties, P3_AFinerDatatypeIsNeverWorse) {
  const CodecCase coarse = Fixed(Still("nuq2", {}, 64, 2)), base = Fixed(Still("nuq3", {}, 64, 2));
  const std::vector<float>& four = coarse.tables->Find("nuq2/k_cent")->values;
  std::vector<float> eight = four;
  for (const float extra : {-0.95f, -0.3f, 0.02f, 0.97f}) eight.push_back(extra);
  std::sort(eight.begin(), eight.end());
  CodecCase fine = base;
  fine.tables = WithNuqTensors(*base.tables, "nuq3", {{"k_cent", eight}});
  CodecHarness a(coarse), b(fine);
  ASSERT_TRUE(a.ok() && b.ok()) << a.error() << b.error();
  SetKind(&a, Kind::kNormal, 64, 17);
  SetKind(&b, Kind::kNormal, 64, 17);
  ASSERT_FALSE(a.EncodeAll());
  ASSERT_FALSE(b.EncodeAll());
  const std::vector<float> ka = a.Keys(0, 1), kb = b.Keys(0, 1);
  int64_t better = 0;
  for (int i = 0; i < 64; ++i) {
    for (int t = 4; t < 64; ++t) {
      const float x = KeyRows(a)[(t * 2 + 1) * 64 + i];
      ASSERT_LE(std::abs(kb[i * 64 + t] - x), std::abs(ka[i * 64 + t] - x));
      better += std::abs(kb[i * 64 + t] - x) < std::abs(ka[i * 64 + t] - x);
    }
  }
  EXPECT_GT(better, 100);
}

std::vector<uint8_t> ValueWords(CodecHarness& h, int head) {
  const uint8_t* const part = h.pages()[head].data() + h.codec().PageSize(0, head).k;
  return {part, part + WordBytes(h.shape().block, h.shape().dv, FindCodec(h.shape().name)->bits)};
}

// P5: values times a power of two: the same codes, restored numbers scaled, so the same indices.
TEST(NuqProperties, P5_ValuesScale) {
  for (const char* name : kNames) {
    for (const auto& form : std::vector<std::vector<std::string>>{{}, {"token"}, {"paper"}}) {
      CodecHarness a(Fixed(Still(name, form, 128, 2))), b(Fixed(Still(name, form, 128, 2)));
      SetKind(&a, Kind::kHeavyTails, 64, 19);
      SetKind(&b, Kind::kHeavyTails, 64, 19);
      for (float& x : b.value_rows()) x *= 8;
      ASSERT_FALSE(a.EncodeAll());
      ASSERT_FALSE(b.EncodeAll());
      for (int head = 0; head < 2; ++head) {
        EXPECT_EQ(ValueWords(a, head), ValueWords(b, head)) << name;
        std::vector<float> scaled = a.Values(0, head);
        for (float& x : scaled) x *= 8;
        EXPECT_EQ(scaled, b.Values(0, head)) << name;
      }
    }
  }
}

// P6: channels (of a head; of all heads where one scale covers them) in another order, thresholds with them: the same
// numbers in that order. Rows without equal numbers in a token, since ties fall to the lower channel.
TEST(NuqProperties, P6_ChannelsPermute) {
  for (const auto& form :
       std::vector<std::vector<std::string>>{{"exact"}, {"paper"}, {"token-keys", "paper"}}) {
    const int d = 64, width = 2 * d;
    const CodecCase c = Fixed(Still("nuq3-1%", form, d, 2));
    const std::string id = NuqTableId(c.name, ParseNuqTableOptions(form));
    std::vector<int> to(width);
    std::iota(to.begin(), to.end(), 0);
    std::mt19937 random(23);
    if (form[0] == "exact") {
      std::shuffle(to.begin(), to.begin() + d, random);
      std::shuffle(to.begin() + d, to.end(), random);
    } else {
      std::shuffle(to.begin(), to.end(), random);
    }
    std::map<std::string, std::vector<float>> permuted;
    for (const char* limit : {"k_lo", "k_hi"}) {
      const CodecTable* const table = c.tables->Find(id + "/" + limit);
      if (table == nullptr) continue;
      permuted[limit].resize(width);
      for (int i = 0; i < width; ++i) permuted[limit][to[i]] = table->values[i];
    }
    CodecCase turned = c;
    turned.tables = WithNuqTensors(*c.tables, id, permuted);
    const auto key = [&](int64_t t, int i) { return ((i * 53 + 7 * t) % width - 63.5f) / 16; };
    const auto value = [&](int64_t t, int i) {
      return (i * 89 % width - 61.5f) / 16 * (i % 29 == 0 ? 9 : 1) + t;
    };
    std::vector<int> from(width);
    for (int i = 0; i < width; ++i) from[to[i]] = i;
    CodecHarness a(c), b(turned);
    ASSERT_TRUE(a.ok() && b.ok()) << a.error() << b.error();
    a.SetRows(
        64, [&](int64_t t, int64_t h, int i) { return key(t, h * d + i); },
        [&](int64_t t, int64_t h, int i) { return value(t, h * d + i); });
    b.SetRows(
        64, [&](int64_t t, int64_t h, int i) { return key(t, from[h * d + i]); },
        [&](int64_t t, int64_t h, int i) { return value(t, from[h * d + i]); });
    ASSERT_FALSE(a.EncodeAll());
    ASSERT_FALSE(b.EncodeAll());
    const std::vector<float> ka[] = {a.Keys(0, 0), a.Keys(0, 1)},
                             kb[] = {b.Keys(0, 0), b.Keys(0, 1)};
    const std::vector<float> va[] = {a.Values(0, 0), a.Values(0, 1)},
                             vb[] = {b.Values(0, 0), b.Values(0, 1)};
    for (int i = 0; i < width; ++i) {
      for (int t = 0; t < 64; ++t) {
        ASSERT_EQ(ka[i / d][i % d * 64 + t], kb[to[i] / d][to[i] % d * 64 + t]);
        ASSERT_EQ(va[i / d][t * d + i % d], vb[to[i] / d][t * d + to[i] % d]);
      }
    }
  }
}

// P7: tokens in another order, where slots suffice: each is restored as before. And what another token is never matters.
TEST(NuqProperties, P7_TokensDoNotTouchEachOther) {
  for (const auto& form : kForms) {
    std::vector<std::string> flags = form;
    flags.push_back("sinks0");
    const CodecCase c = Fixed(Still("nuq3-0.5%", flags, 64, 2));
    SCOPED_TRACE(Label(c, Kind::kNormal));
    std::vector<int> order(64);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(29);
    std::shuffle(order.begin(), order.end(), random);
    const auto rows = NormalFloats(2 * 64 * 2 * 64, 31);
    const auto key = [&](int64_t t, int64_t h, int i) {
      return RoundHalf(rows[(t * 2 + h) * 64 + i]);
    };
    const auto value = [&](int64_t t, int64_t h, int i) {
      return RoundHalf(rows[((64 + t) * 2 + h) * 64 + i]);
    };
    CodecHarness a(c), b(c);
    ASSERT_TRUE(a.ok()) << a.error();
    a.SetRows(64, key, value);
    b.SetRows(
        64, [&](int64_t t, int64_t h, int i) { return key(order[t], h, i); },
        [&](int64_t t, int64_t h, int i) { return value(order[t], h, i); });
    ASSERT_FALSE(a.EncodeAll());
    ASSERT_FALSE(b.EncodeAll());
    EXPECT_EQ(a.overflow(), 0);  // tables that were fitted to such rows leave room
    for (int head = 0; head < 2; ++head) {
      const std::vector<float> ka = a.Keys(0, head), kb = b.Keys(0, head), va = a.Values(0, head),
                               vb = b.Values(0, head);
      for (int t = 0; t < 64; ++t) {
        for (int i = 0; i < 64; ++i) {
          ASSERT_EQ(ka[i * 64 + order[t]], kb[i * 64 + t]);
          ASSERT_EQ(va[order[t] * 64 + i], vb[t * 64 + i]);
        }
      }
    }
  }
}

// P10: more outliers never widen what is left of a value token.
TEST(NuqProperties, P10_MoreOutliersNarrowTheRest) {
  std::mt19937 random(37);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<float> x(64 + trial % 5 * 32);
    for (float& value : x) {
      const float normal = Normal(&random);
      value = RoundHalf(Number(kKinds[trial % 7], 0, normal, random()));
    }
    float before = INFINITY;
    for (int m = 0; m <= 20; ++m) {
      std::vector<int32_t> outliers(2 * m);
      SelectExtremes(x, m, outliers.data());
      ASSERT_EQ(std::set<int32_t>(outliers.begin(), outliers.end()).size(), outliers.size());
      ASSERT_TRUE(std::is_sorted(outliers.begin(), outliers.end()));
      const Normalizer n = RoundedNormalizer(RangeWithout(x, outliers));
      ASSERT_LE(n.s, before) << trial << " " << m;
      before = n.s;
    }
  }
}

// P11: sinks come back exactly, and with the same tables the other tokens are stored alike whatever the number of sinks.
TEST(NuqProperties, P11_Sinks) {
  for (const auto& form : kForms) {
    if (std::count(form.begin(), form.end(), "post-rope") > 0)
      continue;  // nothing of it depends on the domain
    std::vector<std::vector<float>> keys, values;
    for (const char* sinks : {"", "sinks0", "sinks1", "sinks5"}) {
      std::vector<std::string> flags = form;
      if (*sinks != 0) flags.push_back(sinks);
      const CodecCase c = Fixed(Still("nuq3-0.5%", flags, 64, 2));
      CodecHarness h(c);
      ASSERT_TRUE(h.ok()) << h.error();
      const int expected = *sinks == 0 ? kNuqSinks : sinks[5] - '0';
      ASSERT_EQ(h.codec().traits().sink_tokens, expected);
      SetKind(&h, Kind::kNormal, 64, 41);
      ASSERT_FALSE(h.EncodeAll());
      ASSERT_EQ(h.overflow(), 0);
      std::vector<float> kt = h.Keys(0, 1), v = h.Values(0, 1), k_rest;
      for (int t = 0; t < expected; ++t) {
        for (int i = 0; i < 64; ++i) {
          EXPECT_EQ(kt[i * 64 + t], KeyRows(h)[(t * 2 + 1) * 64 + i]);
          EXPECT_EQ(v[t * 64 + i], h.value_rows()[(t * 2 + 1) * 64 + i]);
        }
      }
      for (int i = 0; i < 64; ++i) k_rest.insert(k_rest.end(), &kt[i * 64 + 5], &kt[i * 64] + 64);
      keys.push_back(k_rest);
      values.emplace_back(v.begin() + 5 * 64, v.end());
      EXPECT_EQ(keys.back(), keys.front()) << sinks;
      EXPECT_EQ(values.back(), values.front()) << sinks;
    }
  }
}

// Rows of sinks may stay away: nothing else changes, and they never take slots or count.
TEST(NuqProperties, P11_SinkRowsTakeNoPart) {
  for (const auto& form : kForms) {
    const CodecCase c = Fixed(Still("nuq3-1%", form, 64, 2));
    SCOPED_TRACE(Label(c, Kind::kNormal));
    CodecHarness all(c), without(c);
    for (CodecHarness* h : {&all, &without}) {
      SetKind(h, Kind::kNormal, 64, 43);
      for (int i = 0; i < 4 * 128; ++i)
        h->raw_key_rows()[i] = h->key_rows()[i] = 300.0f * (i % 3 - 1);
      for (int i = 0; i < 4 * 128; ++i) h->value_rows()[i] = i % 2 ? 500.0f : -500.0f;
      ASSERT_FALSE(h->EncodeAll(64));
    }
    // Encoded a second time in another page, from slot 4 on.
    const int64_t saturated = without.saturated();
    for (int head = 0; head < 2; ++head)
      without.pages()[head].assign(without.codec().PageSize(0, head).total(), 0);
    ASSERT_FALSE(without.EncodeSlots(0, 4, 60));
    EXPECT_EQ(without.saturated(), 2 * saturated);
    for (int head = 0; head < 2; ++head) {
      EXPECT_EQ(all.Keys(0, head), without.Keys(0, head));
      EXPECT_EQ(all.Values(0, head), without.Values(0, head));
      EXPECT_EQ(all.pages()[head].size(), without.pages()[head].size());
    }
  }
}

// The tables' slots and nothing else beyond codes and scales.
TEST(NuqProperties, PageSizeIsCodesScalesAndSlots) {
  for (const char* name : kNames) {
    for (const int d : {64, 96, 128, 256}) {
      const CodecCase c = Fixed(Still(name, {}, d, 3));
      CodecHarness h(c);
      const NuqOracle oracle = OracleOf(h);
      const int bits = FindCodec(name)->bits;
      for (int head = 0; head < 3; ++head) {
        const PageBytes size = h.codec().PageSize(0, head);
        EXPECT_EQ(size.k, d * 64 * bits / 8 + 4 * oracle.Table("k_slots")[head]) << name << d;
        EXPECT_EQ(size.v, d * 64 * bits / 8 + 4 * 64 + 4 * oracle.Table("v_slots")[head])
            << name << d;
      }
    }
  }
}

// Codes lie where kernels/codec/README.md says: keys as [coefficient][slot], values as [slot][coefficient].
TEST(NuqProperties, CodesLieWhereTheLayoutSays) {
  for (const char* name : {"nuq4-1%", "nuq3-1%", "nuq2"}) {
    for (const auto& form : std::vector<std::vector<std::string>>{{}, {"exact"}, {"token"}}) {
      CodecHarness h(Fixed(Still(name, form, 96, 2)));
      SetKind(&h, Kind::kHeavyTails, 64, 47);
      ASSERT_FALSE(h.EncodeAll());
      const NuqOracle oracle = OracleOf(h);
      const NuqSide keys = oracle.Keys(KeyRows(h)), values = oracle.Values(h.value_rows());
      const int bits = FindCodec(name)->bits;
      for (int head = 0; head < 2; ++head) {
        const uint8_t* const k = h.pages()[head].data();
        const uint8_t* const v = k + h.codec().PageSize(0, head).k;
        for (int t = kNuqSinks; t < 64; ++t) {  // nobody reads the sinks'
          for (int i = 0; i < 96; ++i) {
            ASSERT_EQ(CodeAt(k, 64, bits, i, t), keys.codes[(t * 2 + head) * 96 + i]);
            ASSERT_EQ(CodeAt(v, 96, bits, t, i), values.codes[(t * 2 + head) * 96 + i]);
          }
        }
      }
    }
  }
}

// A view of fewer tokens than the page holds (a sequence that shares it, or was cut) reads those tokens and nothing else.
TEST(NuqProperties, ViewsOfFewerTokens) {
  for (const auto& form : kForms) {
    const CodecCase c = Fixed(Still("nuq3-1%", form, 64, 2));
    SCOPED_TRACE(Label(c, Kind::kHeavyTails));
    CodecHarness h(c);
    SetKind(&h, Kind::kHeavyTails, 64, 61);
    ASSERT_FALSE(h.EncodeAll());
    const std::vector<float> kt = h.Keys(0, 1), v = h.Values(0, 1);
    for (const int tokens : {0, 1, 3, 4, 5, 33, 63}) {
      PageView view = h.View(0, 1);
      view.tokens = tokens, view.sinks = std::min(view.sinks, tokens);
      std::vector<float> part_k(64 * 64, NAN), part_v(64 * 64, NAN);
      h.codec().DecodeKeys(0, 1, nullptr, view, part_k.data());
      h.codec().DecodeValues(0, 1, nullptr, view, part_v.data());
      for (int t = 0; t < 64; ++t) {
        for (int i = 0; i < 64; ++i) {
          ASSERT_EQ(part_k[i * 64 + t], t < tokens ? kt[i * 64 + t] : 0.0f) << tokens;
          ASSERT_EQ(part_v[t * 64 + i], t < tokens ? v[t * 64 + i] : 0.0f) << tokens;
        }
      }
    }
  }
}

// Tables state slots for blocks of 64; smaller and larger blocks get their share, rounded up.
TEST(NuqProperties, SlotsFollowTheBlock) {
  const CodecCase base = Fixed(Still("nuq3-1%", {}, 64, 2));
  for (const int block : {16, 32, 64, 128}) {
    CodecCase c = base;
    c.tables =
        WithNuqTensors(*base.tables, "nuq3-1%", {{"k_slots", {41, 7}}, {"v_slots", {70, 63}}});
    c.block = block;
    CodecHarness h(c);
    ASSERT_TRUE(h.ok()) << h.error();
    const auto share = [&](int slots) { return (slots * block + 63) / 64; };
    EXPECT_EQ(h.codec().PageSize(0, 0).k, 64 * block * 3 / 8 + 4 * share(41));
    EXPECT_EQ(h.codec().PageSize(0, 1).k, 64 * block * 3 / 8 + 4 * share(7));
    EXPECT_EQ(h.codec().PageSize(0, 0).v,
              (block * 3 + 31) / 32 * 4 * 64 + 4 * block + 4 * share(70));
    EXPECT_EQ(h.codec().PageSize(0, 1).v,
              (block * 3 + 31) / 32 * 4 * 64 + 4 * block + 4 * share(63));
  }
}

// The exact container fills exactly what it asked for, writes nothing behind it, and keeps what a page held before it grew.
TEST(NuqProperties, ExactPagesFillWhatTheyAskFor) {
  for (const auto& form :
       std::vector<std::vector<std::string>>{{"exact"}, {"paper"}, {"cap", "exact"}}) {
    CodecCase c = Fixed(Still("nuq3-1%", form, 64, 2));
    const std::string id = NuqTableId(c.name, ParseNuqTableOptions(form));
    c.tables = WithNuqTensors(*c.tables, id, {{"k_outliers", {0, 0}}, {"v_outliers", {0, 0}}});
    CodecHarness h(c);
    ASSERT_TRUE(h.codec().traits().growing_page && h.codec().traits().shared_page);
    SetKind(&h, Kind::kHeavyTails, 64, 53);
    ASSERT_FALSE(h.EncodeAll(7));
    const NuqOracle oracle = OracleOf(h);
    const size_t entries =
        oracle.Keys(KeyRows(h)).entries.size() + oracle.Values(h.value_rows()).entries.size();
    const int64_t fixed = h.codec().PageSize(0, 0).total();
    EXPECT_EQ(static_cast<int64_t>(h.pages()[0].size()), fixed + 4 * static_cast<int64_t>(entries));
    EXPECT_EQ(static_cast<int64_t>(h.pages()[1].size()), h.codec().PageSize(0, 1).total());
    // With guards behind every page.
    std::vector<std::vector<uint8_t>> guarded;
    for (int head = 0; head < 2; ++head) {
      guarded.emplace_back(h.pages()[head].size(), 0);
      guarded.back().resize(h.pages()[head].size() + 64, 0xa5);
    }
    uint8_t* const pages[] = {guarded[0].data(), guarded[1].data()};
    EncodeArgs args;
    args.count = 64, args.k = KeyRows(h).data(), args.v = h.value_rows().data(), args.pages = pages;
    EXPECT_EQ(h.codec().SharedPageBytes(args), static_cast<int64_t>(h.pages()[0].size()));
    ASSERT_FALSE(h.codec().Encode(args));
    for (int head = 0; head < 2; ++head) {
      EXPECT_EQ(0,
                std::memcmp(guarded[head].data(), h.pages()[head].data(), h.pages()[head].size()));
      for (int i = 0; i < 64; ++i) EXPECT_EQ(guarded[head][h.pages()[head].size() + i], 0xa5);
    }
  }
}

TEST(NuqProperties, OtherPagesAreGuardedToo) {
  for (const auto& form : std::vector<std::vector<std::string>>{{}, {"token"}, {"cap"}}) {
    CodecHarness h(Fixed(Still("nuq3-1%", form, 100, 3)));
    SetKind(&h, Kind::kOneHead, 64, 59);
    ASSERT_FALSE(h.EncodeAll());
    EXPECT_GT(h.overflow(), 0);
    std::vector<std::vector<uint8_t>> guarded;
    std::vector<uint8_t*> pages;
    for (int head = 0; head < 3; ++head) guarded.emplace_back(h.pages()[head].size() + 64, 0xa5);
    for (auto& page : guarded) pages.push_back(page.data());
    EncodeArgs args;
    args.count = 64, args.k = KeyRows(h).data(), args.v = h.value_rows().data(),
    args.pages = pages.data();
    ASSERT_FALSE(h.codec().Encode(args));
    for (int head = 0; head < 3; ++head) {
      EXPECT_EQ(0,
                std::memcmp(guarded[head].data(), h.pages()[head].data(), h.pages()[head].size()));
      for (int i = 0; i < 64; ++i) EXPECT_EQ(guarded[head][h.pages()[head].size() + i], 0xa5);
    }
  }
}

}  // namespace
}  // namespace kvring
