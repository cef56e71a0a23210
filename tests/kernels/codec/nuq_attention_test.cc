// SPDX-License-Identifier: Apache-2.0
// Properties P4, P8, P9, P12, P14 of kvquant 10: attention over nuq's pages against double arithmetic on what they hold.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>

#include "kernels/attention.h"
#include "kernels/codec/nuq_rules.h"
#include "tests/kernels/codec/codec_harness.h"
#include "tests/kernels/codec/nuq_oracle.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

constexpr int64_t kTokens = 128 + 37;

class Logits final : public ScoreSink {
 public:
  Logits(int64_t rows, int64_t begin, int64_t tokens)
      : begin_(begin), tokens_(tokens), logits(rows * tokens, -INFINITY) {}
  void AddScores(int64_t row, int64_t begin, int64_t count, const float* values) override {
    std::copy_n(values, count, &logits[row * tokens_ + begin - begin_]);
  }

 private:
  int64_t begin_, tokens_;

 public:
  std::vector<float> logits;  // [rows][tokens], base 2
};

struct Attended {
  std::vector<float> storage, out, logits;
  SoftmaxPartial partial;
};

// Attention of `rows` queries (after RoPE, not scaled) of one KV head at the last position.
class Reader {
 public:
  Reader(CodecHarness& h, int head, std::vector<float> q, int64_t begin)
      : h_(h), head_(head), begin_(begin), q_(std::move(q)) {
    const CodecCase& c = h.shape();
    rows_ = static_cast<int64_t>(q_.size()) / c.dk;
    for (int64_t block = 0; block * c.block < h.tokens(); ++block)
      views_.push_back(h.View(block, head));
    positions_.assign(rows_, begin + h.tokens() - 1);
    scaled_ = q_;
    for (float& x : scaled_) x *= static_cast<float>(std::numbers::log2e / std::sqrt(c.dk));
  }

  Attended Attend(std::span<const PageView> pages) const {
    const CodecCase& c = h_.shape();
    Attended a;
    Logits logits(rows_, begin_, h_.tokens());
    AttendArgs args;
    args.codec = &h_.codec();
    args.head = head_;
    args.rope = &h_.rope();
    args.dk = c.dk, args.dv = c.dv;
    args.pages = pages;
    args.positions = positions_;
    args.raw_q = scaled_.data(), args.packed_q = scaled_.data();
    args.rule = {Visibility::kTeacher, 512};
    args.scores = &logits;
    a.storage.resize(PartialFloats(rows_, c.dv));
    a.partial = PartialAt(a.storage.data(), rows_, c.dv);
    MakeEmpty(a.partial);
    AttendScratch scratch;
    AttendPages(args, scratch, a.partial);
    a.out.resize(rows_ * c.dv);
    Finalize(a.partial, a.out.data());
    a.logits = logits.logits;
    return a;
  }
  Attended Attend() const { return Attend(views_); }

  const std::vector<PageView>& views() const { return views_; }
  int64_t rows() const { return rows_; }
  const float* Query(int64_t row) const { return &q_[row * h_.shape().dk]; }

 private:
  CodecHarness& h_;
  int head_;
  int64_t begin_, rows_ = 0;
  std::vector<float> q_, scaled_;
  std::vector<PageView> views_;
  std::vector<int64_t> positions_;
};

CodecCase MakeCase(const std::string& name, std::vector<std::string> flags, int d, int query_heads,
                   int kv_heads) {
  CodecCase c;
  c.name = name;
  c.flags = std::move(flags);
  c.dk = c.dv = d, c.query_heads = query_heads, c.kv_heads = kv_heads;
  c.pairing = d % 3 == 0 ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
  c.tables = TestNuqTables({1, query_heads, kv_heads, d, d, c.block}, c.flags, name);
  return c;
}

const std::vector<float>& KeyRows(CodecHarness& h) {
  return h.codec().traits().key_domain == KeyDomain::kPreRope ? h.raw_key_rows() : h.key_rows();
}

// What a query should meet of one token: restored by the plain encoder, sinks exact, rotated in double.
std::vector<double> RotatedKey(CodecHarness& h, const NuqSide& keys, int64_t begin, int64_t token,
                               int head) {
  const CodecCase& c = h.shape();
  const bool sink = begin == 0 && token < h.codec().traits().sink_tokens;
  const float* const row = &(sink ? KeyRows(h) : keys.restored)[(token * c.kv_heads + head) * c.dk];
  std::vector<double> x(row, row + c.dk);
  if (h.codec().traits().key_domain == KeyDomain::kPostRope) return x;
  for (int p = 0; p < h.rope().planes(); ++p) {
    const double angle = h.rope().inv_freq[p] * (begin + token);
    double &a = x[h.rope().First(p)], &b = x[h.rope().Second(p)];
    const double first = a * std::cos(angle) - b * std::sin(angle);
    b = a * std::sin(angle) + b * std::cos(angle);
    a = first;
  }
  return x;
}

// A score is a chain of dk products of an fp32 query with an fp32 key; the key's rotation is three roundings of two terms and
// its angles' cosines and sines three more of each. As a share of |q| |k| (Cauchy), in nats.
double ScoreUnit(int dk) { return (dk + 16) * kUnitF32; }

void CheckP4(const CodecCase& c, int64_t begin) {
  SCOPED_TRACE(c.name + " d " + std::to_string(c.dk) + " begin " + std::to_string(begin));
  CodecHarness h(c);
  ASSERT_TRUE(h.ok()) << h.error();
  h.MakeRows(kTokens, 61, 0.7f);
  h.set_begin(begin);
  ASSERT_FALSE(h.EncodeAll(50));
  const NuqOracle oracle(c, h.tables(), h.codec().traits().sink_tokens, begin / c.block);
  const NuqSide keys = oracle.Keys(KeyRows(h)), values = oracle.Values(h.value_rows());
  const int group = c.query_heads / c.kv_heads;
  for (int head = 0; head < c.kv_heads; ++head) {
    const Reader reader(h, head, NormalFloats(int64_t{group} * c.dk, 67 + head, 2.0f), begin);
    const Attended got = reader.Attend();
    for (int64_t r = 0; r < group; ++r) {
      double norm_q = 0, norm_k = 0, most_v = 0, sum = 0, top = -INFINITY;
      for (int i = 0; i < c.dk; ++i) norm_q += reader.Query(r)[i] * double{reader.Query(r)[i]};
      std::vector<double> scores, out(c.dv, 0.0);
      for (int64_t t = 0; t < kTokens; ++t) {
        const std::vector<double> k = RotatedKey(h, keys, begin, t, head);
        double score = 0, square = 0;
        for (int i = 0; i < c.dk; ++i)
          score += k[i] * reader.Query(r)[i] / std::sqrt(c.dk), square += k[i] * k[i];
        const double allowed = ScoreUnit(c.dk) * std::sqrt(norm_q * square / c.dk);
        ASSERT_LT(ScoreUnit(c.dk), 1e-3);  // the property's own bound
        ASSERT_NEAR(got.logits[r * kTokens + t] * std::numbers::ln2, score, allowed)
            << head << " " << t;
        scores.push_back(score);
        top = std::max(top, score), norm_k = std::max(norm_k, square);
      }
      for (int64_t t = 0; t < kTokens; ++t) {
        const bool sink = begin == 0 && t < h.codec().traits().sink_tokens;
        const float* const v =
            &(sink ? h.value_rows() : values.restored)[(t * c.kv_heads + head) * c.dv];
        const double weight = std::exp(scores[t] - top);
        sum += weight;
        for (int i = 0; i < c.dv; ++i)
          out[i] += weight * v[i], most_v = std::max(most_v, std::abs(double{v[i]}));
      }
      // Numerator and denominator have each weight's error once; sums of kTokens terms.
      const double weight = ScoreUnit(c.dk) * std::sqrt(norm_q * norm_k / c.dk) + 2 * kUnitF32;
      const double allowed = (2 * weight + (2 * kTokens + 4) * kUnitF32) * most_v;
      for (int i = 0; i < c.dv; ++i) ASSERT_NEAR(got.out[r * c.dv + i], out[i] / sum, allowed);
    }
  }
}

TEST(NuqAttention, P4_MatchesDoubleOnTheDecodedTensors) {
  for (const int d : {64, 96, 128, 256}) {
    for (const auto& [query_heads, kv_heads] : {std::pair{2, 2}, {8, 2}, {8, 1}}) {
      CheckP4(MakeCase("nuq4-1%", {}, d, query_heads, kv_heads), 0);
      CheckP4(MakeCase("nuq2", {}, d, query_heads, kv_heads), 131072);
    }
  }
  for (const std::vector<std::string>& form :
       std::vector<std::vector<std::string>>{{"token"},
                                             {"exact"},
                                             {"paper"},
                                             {"cap"},
                                             {"qnorm"},
                                             {"token-keys"},
                                             {"channel-values"},
                                             {"post-rope"}}) {
    CheckP4(MakeCase("nuq3-0.5%", form, 64, 8, 2), 0);
    CheckP4(MakeCase("nuq2-0.1%", form, 64, 8, 2), 9'999'936);
  }
}

// P8: keys before RoPE are stored without their positions; scores depend on distances alone.
TEST(NuqAttention, P8_ACommonShiftChangesNothing) {
  for (const int64_t shift : {int64_t{64}, int64_t{1} << 20, int64_t{9'999'936}}) {
    for (const auto& form :
         std::vector<std::vector<std::string>>{{"sinks0"}, {"paper", "sinks0"}}) {
      const CodecCase c = MakeCase("nuq3-1%", form, 128, 2, 2);
      CodecHarness near(c), far(c);
      for (CodecHarness* h : {&near, &far}) h->MakeRows(kTokens, 71, 0.7f);
      far.set_begin(shift);
      ASSERT_FALSE(near.EncodeAll());
      ASSERT_FALSE(far.EncodeAll());
      ASSERT_EQ(near.pages(), far.pages());
      std::vector<float> q = NormalFloats(128, 73, 2.0f), q_far = q, angles(128);
      RopeAngles(near.rope(), kTokens - 1, angles.data());
      RopeRotate(near.rope(), angles.data(), q.data());
      RopeAngles(near.rope(), shift + kTokens - 1, angles.data());
      RopeRotate(near.rope(), angles.data(), q_far.data());
      const Attended a = Reader(near, 1, q, 0).Attend(), b = Reader(far, 1, q_far, shift).Attend();
      const NuqSide keys = NuqOracle(c, near.tables(), 0).Keys(KeyRows(near));
      double norm_q = 0;
      for (const float x : q) norm_q += x * double{x};
      for (int64_t t = 0; t < kTokens; ++t) {
        double square = 0;
        for (int i = 0; i < 128; ++i) square += std::pow(keys.restored[(t * 2 + 1) * 128 + i], 2);
        // Both scores are off by a unit, and both queries' rotations by six roundings.
        const double allowed =
            2 * (ScoreUnit(128) + 6 * kUnitF32) * std::sqrt(norm_q * square / 128);
        ASSERT_NEAR(a.logits[t] * std::numbers::ln2, b.logits[t] * std::numbers::ln2, allowed)
            << shift << " " << t;
      }
    }
  }
}

// P9: queries that share a KV head read what each would read of a copy of its own. With f = 0: outliers of values are chosen
// over all heads, so copies would change m.
TEST(NuqAttention, P9_SharedHeadsEqualRepeatedOnes) {
  const CodecCase shared = MakeCase("nuq3", {}, 64, 8, 2);
  CodecCase repeated = MakeCase("nuq3", {}, 64, 8, 8);
  std::map<std::string, std::vector<float>> limits;
  for (const char* name : {"k_lo", "k_hi"}) {
    const std::vector<float>& of = shared.tables->Find(std::string("nuq3/") + name)->values;
    for (int head = 0; head < 8; ++head)
      limits[name].insert(limits[name].end(), of.begin() + head / 4 * 64,
                          of.begin() + (head / 4 + 1) * 64);
  }
  for (const char* name : {"k_cent", "v_cent"})
    limits[name] = shared.tables->Find(std::string("nuq3/") + name)->values;
  repeated.tables = WithNuqTensors(*repeated.tables, "nuq3", limits);
  CodecHarness a(shared), b(repeated);
  ASSERT_TRUE(a.ok() && b.ok()) << a.error() << b.error();
  const std::vector<float> k = NormalFloats(kTokens * 128, 79), v = NormalFloats(kTokens * 128, 83);
  const auto row = [](const std::vector<float>& x, int64_t t, int64_t head, int i) {
    return RoundHalf(x[(t * 2 + head) * 64 + i]);
  };
  a.SetRows(
      kTokens, [&](int64_t t, int64_t head, int i) { return row(k, t, head, i); },
      [&](int64_t t, int64_t head, int i) { return row(v, t, head, i); });
  b.SetRows(
      kTokens, [&](int64_t t, int64_t head, int i) { return row(k, t, head / 4, i); },
      [&](int64_t t, int64_t head, int i) { return row(v, t, head / 4, i); });
  ASSERT_FALSE(a.EncodeAll());
  ASSERT_FALSE(b.EncodeAll());
  for (int head = 0; head < 8; ++head) {
    const std::vector<float> q = NormalFloats(64, 89 + head, 2.0f);
    EXPECT_TRUE(
        SameBits(Reader(a, head / 4, q, 0).Attend().out, Reader(b, head, q, 0).Attend().out))
        << head;
  }
}

TEST(NuqAttention, P12_AnySplitMergesToTheWhole) {
  for (const auto& form : std::vector<std::vector<std::string>>{{}, {"token"}, {"paper"}}) {
    CodecHarness h(MakeCase("nuq3-1%", form, 64, 8, 2));
    h.MakeRows(6 * 64 + 5, 97, 0.7f);
    ASSERT_FALSE(h.EncodeAll());
    const Reader reader(h, 1, NormalFloats(4 * 64, 101, 2.0f), 0);
    const Attended whole = reader.Attend(), again = reader.Attend();
    EXPECT_TRUE(SameBits(whole.storage, again.storage));
    float most_v = 0;
    for (const float x : h.value_rows()) most_v = std::max(most_v, std::abs(x));
    std::mt19937 random(103);
    for (int parts = 2; parts <= 7; ++parts) {
      std::vector<std::vector<PageView>> split(parts);
      for (const PageView& page : reader.views()) split[random() % parts].push_back(page);
      Attended merged = reader.Attend(split[0]);
      for (int p = 1; p < parts; ++p) Merge(merged.partial, reader.Attend(split[p]).partial);
      std::vector<float> out(whole.out.size());
      ASSERT_TRUE(Finalize(merged.partial, out.data()));
      // The same weights up to exp2 of exact differences; sums in another order. Restored values exceed the rows' by less
      // than a half.
      const double allowed = (2.0 * (6 * 64 + 5) + 8 * parts) * kUnitF32 * 1.5 * most_v;
      EXPECT_TRUE(AllNear(out, whole.out, {allowed, 0})) << parts;
    }
  }
}

// Where the fixed slots of a part end is where the part ends: index u16 [slots], residual Half [slots].
struct Slots {
  uint8_t* index;
  uint8_t* residual;
  int count;
  int Token(int slot, int dim) const {
    uint16_t i;
    std::memcpy(&i, index + 2 * slot, 2);
    return i / dim;
  }
  int Channel(int slot, int dim) const {
    uint16_t i;
    std::memcpy(&i, index + 2 * slot, 2);
    return i % dim;
  }
  Half Residual(int slot) const {
    Half r;
    std::memcpy(&r, residual + 2 * slot, 2);
    return r;
  }
};

Slots SlotsAtEnd(uint8_t* end, float count) {
  const int slots = static_cast<int>(count);
  return {end - 4 * slots, end - 2 * slots, slots};
}

TEST(NuqAttention, P14_OneSlotIsOneTokensContribution) {
  CodecHarness h(MakeCase("nuq3-1%", {}, 64, 2, 2));
  h.MakeRows(128, 107, 0.7f);
  ASSERT_FALSE(h.EncodeAll());
  const NuqOracle oracle(h.shape(), h.tables(), 4);
  std::vector<uint8_t>& page = h.pages()[1 * 2 + 1];  // block 1, head 1
  const PageBytes size = h.codec().PageSize(0, 1);
  const Slots k = SlotsAtEnd(page.data() + size.k, oracle.Table("k_slots")[1]);
  const Slots v = SlotsAtEnd(page.data() + size.total(), oracle.Table("v_slots")[1]);
  const Reader reader(h, 1, NormalFloats(64, 109, 1.0f), 0);
  const Attended before = reader.Attend();
  const Half seven = FloatToHalf(7.0f);
  int used = 0;
  for (int slot = 0; slot < k.count && k.Residual(slot) != 0; ++slot, ++used) {
    const Half kept = k.Residual(slot);
    std::memcpy(k.residual + 2 * slot, &seven, 2);
    const Attended after = reader.Attend();
    std::memcpy(k.residual + 2 * slot, &kept, 2);
    for (int t = 0; t < 128; ++t)
      ASSERT_EQ(after.logits[t] != before.logits[t], t == 64 + k.Token(slot, 64))
          << slot << " " << t;
  }
  for (int slot = 0; slot < v.count && v.Residual(slot) != 0; ++slot, ++used) {
    const Half kept = v.Residual(slot);
    std::memcpy(v.residual + 2 * slot, &seven, 2);
    const Attended after = reader.Attend();
    std::memcpy(v.residual + 2 * slot, &kept, 2);
    EXPECT_EQ(after.logits, before.logits);
    const double weight =
        std::exp2(double{before.logits[64 + v.Token(slot, 64)]} - before.partial.m[0]) /
        before.partial.l[0];
    for (int i = 0; i < 64; ++i) {
      const double moved = i == v.Channel(slot, 64) ? weight * (7.0 - HalfToFloat(kept)) : 0.0;
      // Sums of 128 terms of at most 11 (a value and seven), each weight within 4 units of itself.
      ASSERT_NEAR(after.out[i] - before.out[i], moved, 2 * (128 + 8) * kUnitF32 * 11)
          << slot << " " << i;
    }
  }
  EXPECT_GT(used, 80);  // 64 tokens of a head have about 40 key outliers, and 64 of values
}

struct Refusal {
  std::string what;
  std::map<std::string, std::vector<float>> tensors;
};

// Tables that do not fit are refused, and the answer names the tensor.
TEST(NuqTablesRefused, TensorsThatDoNotFit) {
  const CodecCase good = MakeCase("nuq2-1%", {}, 64, 2, 2);
  ASSERT_TRUE(CodecHarness(good).ok()) << CodecHarness(good).error();
  const std::vector<float> ones(128, 1.0f), twos(128, 2.0f);
  std::vector<float> with_nan = ones;
  with_nan[100] = NAN;
  for (const Refusal& refusal : std::vector<Refusal>{
           {"k_lo", {{"k_lo", std::vector<float>(127, -1.0f)}}},
           {"k_hi", {{"k_hi", with_nan}}},
           {"k_", {{"k_lo", twos}, {"k_hi", ones}}},
           {"k_cent", {{"k_cent", {-0.8f, 0.2f, 0.1f, 0.9f}}}},
           {"k_cent", {{"k_cent", {-0.8f, 0.1f, 0.9f}}}},
           {"v_cent", {{"v_cent", {-0.8f, NAN, 0.1f, 0.9f}}}},
           {"k_slots", {{"k_slots", {10}}}},
           {"v_slots", {{"v_slots", {-1, 10}}}},
           {"v_slots", {{"v_slots", {1e9f, 10}}}},
           {"k_slots", {{"k_slots", {NAN, 10}}}},
       }) {
    CodecCase c = good;
    c.tables = WithNuqTensors(*good.tables, "nuq2-1%", refusal.tensors);
    const CodecHarness h(c);
    EXPECT_FALSE(h.ok()) << refusal.what;
    EXPECT_NE(h.error().find(refusal.what), std::string::npos) << h.error();
  }
}

TEST(NuqTablesRefused, MissingTablesAreNamed) {
  const CodecCase good = MakeCase("nuq2-1%", {}, 64, 2, 2);
  CodecCase other = good;
  other.flags = {"cap"};
  EXPECT_NE(CodecHarness(other).error().find("nuq2-1%:cap"), std::string::npos)
      << CodecHarness(other).error();
  const CodecRow& row = *FindCodec("nuq2-1%");
  const RopeTable rope = MakeRopeTable(RopePairing::kHalfSplit, 64, 64, 10000.0, {});
  CodecOptions options;
  options.shape = {1, 2, 2, 64, 64, 64};
  options.rope = {&rope};
  const CodecMade without = row.make(row, options);
  ASSERT_EQ(without.codec, nullptr);
  EXPECT_NE(without.error.find("nuq2-1%"), std::string::npos) << without.error;
  EXPECT_NE(without.error.find("calibrat"), std::string::npos) << without.error;
  for (const char* name : {"k_lo", "k_hi", "k_cent", "v_cent", "k_slots", "v_slots"}) {
    auto fewer = std::make_shared<CodecTables>(*good.tables);
    fewer->tensors.erase(std::string("nuq2-1%/") + name);
    CodecCase c = good;
    c.tables = fewer;
    EXPECT_NE(CodecHarness(c).error().find(name), std::string::npos)
        << name << ": " << CodecHarness(c).error();
  }
}

// Tables were made for one model: other sizes do not pass.
TEST(NuqTablesRefused, ShapesOfAnotherModel) {
  for (const auto& [dk, heads] : {std::pair{128, 2}, {64, 4}, {80, 2}}) {
    CodecCase c = MakeCase("nuq3-1%", {}, 64, 4, 2);
    c.dk = c.dv = dk, c.kv_heads = heads;
    EXPECT_FALSE(CodecHarness(c).ok()) << dk << " " << heads;
  }
}

}  // namespace
}  // namespace kvring
