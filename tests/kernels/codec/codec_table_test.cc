// SPDX-License-Identifier: Apache-2.0
// What every codec of the table must do; a new row is tested without being told.
#include <gtest/gtest.h>

#include <cctype>
#include <limits>
#include <sstream>

#include "tests/kernels/codec/codec_harness.h"
#include "tests/kernels/simd_targets.h"

namespace kvring {
namespace {

// "nuq3-1%:exact:qnorm": a row of the table and options.
struct Subject {
  std::string id;
  std::vector<std::string> flags;
  CodecRow row;
};

Subject MakeSubject(const std::string& id) {
  Subject subject{id, {}, *FindCodec(id.substr(0, id.find(':')))};
  std::istringstream parts(id.substr(std::string(subject.row.name).size()));
  for (std::string part; std::getline(parts, part, ':');) {
    if (!part.empty()) subject.flags.push_back(part);
  }
  return subject;
}

// Every row as it is, and the forms of nuq and the trellis: their bytes and rules differ as much as those of other rows.
std::vector<Subject> Subjects() {
  std::vector<Subject> subjects;
  for (const CodecRow& row : AllCodecs()) subjects.push_back(MakeSubject(row.name));
  for (const char* id : {"nuq3-1%:exact",
                         "nuq3-1%:token",
                         "nuq4-0.5%:paper",
                         "nuq2-1%:paper",
                         "nuq3-1%:cap",
                         "nuq2-1%:qnorm",
                         "nuq3-1%:token-keys",
                         "nuq3-1%:channel-values",
                         "nuq3-1%:post-rope",
                         "nuq3-1%:int",
                         "nuq3-1%:nf",
                         "nuq3-1%:post-rope:token-keys",
                         "nuq3:token",
                         "nuq3-1%:channel-values:exact",
                         "nuq3-1%:token-keys:paper",
                         "rot4:trellis",
                         "rot3:trellis",
                         "rot2:trellis",
                         "tc4:trellis",
                         "tc2.5:trellis"})
    subjects.push_back(MakeSubject(id));
  return subjects;
}

std::string TestName(std::string id) {
  for (char& c : id) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return id;
}

class EveryCodec : public testing::TestWithParam<Subject> {
 protected:
  CodecCase Case() const {
    CodecCase c;
    c.name = row().name;
    c.flags = GetParam().flags;
    return c;
  }
  const CodecRow& row() const { return GetParam().row; }
  bool Is(const std::string& family) const { return GetParam().id.rfind(family, 0) == 0; }
  bool Has(const std::string& flag) const {
    return std::count(GetParam().flags.begin(), GetParam().flags.end(), flag) > 0;
  }
  int bits() const { return row().bits; }
  bool lossless() const { return bits() >= 16; }
};

INSTANTIATE_TEST_SUITE_P(Table, EveryCodec, testing::ValuesIn(Subjects()),
                         [](const auto& info) { return TestName(info.param.id); });

// What a failure prints of the parameter.
void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.id; }

// Largest relative error (root mean square) of Gaussian rows: Lloyd-Max's own error at b bits with a third to spare for
// uniform codes, which keep the extremes; halving with every bit below 8.
double ErrorBound(int bits) {
  if (bits == 32) return 1e-7;
  if (bits == 16) return 5e-4;
  if (bits == 1) return 1.6 * std::sqrt(0.3634);
  return 1.6 * std::sqrt(bits == 2 ? 0.1175 : bits == 3 ? 0.03454 : bits == 4 ? 0.009497 : 1e-4);
}

TEST_P(EveryCodec, SizeIsWhatTheNameSays) {
  CodecHarness h(Case());
  ASSERT_TRUE(h.ok()) << h.error();
  EXPECT_EQ(h.codec().traits().id, GetParam().id);
  EXPECT_EQ(h.codec().traits().dk, 64);
  EXPECT_EQ(h.codec().traits().prefix_tokens % 64, 0);
  EXPECT_EQ(h.codec().traits().tables_hash, row().calibrated ? h.tables().hash : 0);
  if (row().rate >
      0) {  // heads differ; all together have the rate, and a gain of a byte on either side
    const int64_t total = h.codec().PageSize(0, 0).total() + h.codec().PageSize(0, 1).total();
    EXPECT_EQ(8.0 * total / (2 * 64 * 128), row().rate / 100.0 + 0.125);
  }
  if (row().calibrated) return;  // slots: nuq_properties_test.cc
  const PageBytes size = h.codec().PageSize(0, 0);
  const double stated = lossless() ? bits() : bits() + (Is("rot") ? 0.125 : 0.5);
  EXPECT_EQ(8.0 * size.total() / (64 * 128), stated);
}

TEST_P(EveryCodec, RoundTrip) {
  CodecHarness h(Case());
  h.MakeRows(256, 1, 1.0f);
  h.FreezeState();
  ASSERT_FALSE(h.EncodeAll());
  EXPECT_LT(KeyError(h).value(), ErrorBound(bits()));
  EXPECT_LT(ValueError(h).value(), ErrorBound(bits()));
  if (!Has("cap")) {  // whose losers saturate
    EXPECT_EQ(h.saturated(), 0);
  }
}

TEST_P(EveryCodec, SinksComeBackExactly) {
  CodecHarness h(Case());
  h.MakeRows(128, 2, 1.0f);
  h.FreezeState();
  ASSERT_FALSE(h.EncodeAll());
  const int sinks = h.codec().traits().sink_tokens;
  EXPECT_EQ(sinks, lossless() ? 0 : 4);
  std::vector<float> kt = h.Keys(0, 1), v = h.Values(0, 1);
  for (int t = 0; t < sinks; ++t) {
    for (int i = 0; i < 64; ++i) EXPECT_EQ(v[t * 64 + i], h.value_rows()[(t * 2 + 1) * 64 + i]);
    // A query's score against a sink is that of the exact row; rounding of 64 products is the only difference.
    std::vector<float> q(64, 1.0f), packed(64);
    h.codec().PrepareQuery(0, 1, h.State(1), q.data(), 1, packed.data());
    double score = 0.0, exact = 0.0;
    for (int i = 0; i < 64; ++i) score += packed[i] * kt[i * 64 + t];
    // Keys before RoPE are rounded to fp16 and then rotated, the harness's Key is rotated and then rounded: 2^-11 of each.
    for (int i = 0; i < 64; ++i) exact += h.Key(t, 1)[i];
    EXPECT_NEAR(score, exact, 64 * 0x1p-11);
  }
}

// F16: the same rows as one call, in pieces, and token by token give the same bytes, whatever was in the page before.
TEST_P(EveryCodec, F16_BytesDoNotDependOnChunking) {
  CodecHarness bulk(Case()), pieces(Case()), single(Case());
  for (CodecHarness* h : {&bulk, &pieces, &single}) h->MakeRows(300, 3, 1.0f);
  bulk.FreezeState();
  pieces.FreezeState(37);
  single.FreezeState(1);
  ASSERT_EQ(bulk.state(), pieces.state());
  ASSERT_EQ(bulk.state(), single.state());
  ASSERT_FALSE(bulk.EncodeAll());
  ASSERT_FALSE(pieces.EncodeAll(37));
  ASSERT_FALSE(single.EncodeAll(1));
  EXPECT_EQ(bulk.pages(), pieces.pages());
  EXPECT_EQ(bulk.pages(), single.pages());
  CodecHarness dirty(Case());
  dirty.MakeRows(256, 3, 1.0f);  // whole blocks: every byte of a page is written
  dirty.FreezeState();
  ASSERT_FALSE(dirty.EncodeAll(5, 0xff));
  CodecHarness clean(Case());
  clean.MakeRows(256, 3, 1.0f);
  clean.FreezeState();
  ASSERT_FALSE(clean.EncodeAll(64, 0));
  EXPECT_EQ(dirty.pages(), clean.pages());
}

// Slots that are not in use hold NaN patterns: nothing of them reaches the tiles, and their place is zeros.
TEST_P(EveryCodec, UnusedSlotsAreNotRead) {
  CodecHarness poisoned(Case()), zeroed(Case());
  for (CodecHarness* h : {&poisoned, &zeroed}) {
    h->MakeRows(256 + 21, 4, 1.0f);
    h->FreezeState();
  }
  if (poisoned.codec().traits().page_scoped()) {  // such blocks are not packed at all
    ASSERT_FALSE(poisoned.EncodeAll());
    EXPECT_TRUE(static_cast<bool>(poisoned.EncodeSlots(4, 0, 21)));
    return;
  }
  ASSERT_FALSE(poisoned.EncodeAll(64, 0xff));
  ASSERT_FALSE(zeroed.EncodeAll(64, 0));
  EXPECT_EQ(poisoned.Keys(4, 0), zeroed.Keys(4, 0));
  EXPECT_EQ(poisoned.Values(4, 0), zeroed.Values(4, 0));
  const std::vector<float> kt = poisoned.Keys(4, 0), v = poisoned.Values(4, 0);
  for (int t = 21; t < 64; ++t) {
    for (int i = 0; i < 64; ++i)
      ASSERT_TRUE(kt[i * 64 + t] == 0.0f && v[t * 64 + i] == 0.0f) << t << " " << i;
  }
}

// All instruction sets make the same bytes and the same tiles.
TEST_P(EveryCodec, SameBitsOnEveryInstructionSet) {
  std::vector<std::vector<uint8_t>> pages;
  std::vector<float> kt, v;
  ForEachSimdTarget([&](int64_t) {
    CodecHarness h(Case());
    h.MakeRows(256, 5, 1.0f);
    h.FreezeState();
    ASSERT_FALSE(h.EncodeAll());
    if (pages.empty()) pages = h.pages(), kt = h.Keys(2, 1), v = h.Values(2, 1);
    EXPECT_EQ(pages, h.pages());
    EXPECT_EQ(kt, h.Keys(2, 1));
    EXPECT_EQ(v, h.Values(2, 1));
  });
}

bool Finite(const std::vector<float>& x) {
  return std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); });
}

// F05: zeros, constants, subnormals and the largest numbers stay finite; zeros stay zeros.
TEST_P(EveryCodec, F05_HardRowsStayFinite) {
  for (const float constant : {0.0f, 100.0f, -7.5f, 0x1p-24f, 65504.0f, -65504.0f}) {
    CodecHarness h(Case());
    h.SetRows(
        192, [&](int64_t, int, int) { return constant; },
        [&](int64_t, int, int) { return constant; });
    h.FreezeState();
    ASSERT_FALSE(h.EncodeAll());
    std::vector<float> v = h.Values(2, 0);
    EXPECT_TRUE(Finite(h.Keys(2, 0)) && Finite(v)) << constant;
    h.codec().FinishOutput(0, 0, v.data(), 64);
    if (constant == 0.0f) {
      EXPECT_EQ(h.Keys(2, 0), std::vector<float>(64 * 64, 0.0f));
      EXPECT_EQ(v, std::vector<float>(64 * 64, 0.0f));
    }
    if (Is("int") || Is("nf") || Is("nuq")) {
      for (const float value : v) EXPECT_NEAR(value, constant, 1e-3 * std::abs(constant));
    }
  }
}

// F05: one constant channel among random ones; codecs with a range per group give it back.
TEST_P(EveryCodec, F05_ConstantChannel) {
  CodecHarness h(Case());
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  const auto row = [&](int64_t, int, int i) { return i == 11 ? -7.5f : RoundHalf(normal(random)); };
  h.SetRows(192, row, row);
  h.FreezeState();
  ASSERT_FALSE(h.EncodeAll());
  EXPECT_LT(KeyError(h).value(), 2 * ErrorBound(bits()));
  // A range per token covers the constant and the others alike.
  if (h.codec().traits().key_domain != KeyDomain::kPreRope || Has("token-keys")) return;
  std::vector<float> kt = h.Keys(2, 0), angles(64), column(64);
  for (int t = 0; t < 64; ++t) {
    for (int i = 0; i < 64; ++i) column[i] = kt[i * 64 + t];
    RopeAngles(h.rope(), 128 + t, angles.data());
    RopeRotateBack(h.rope(), angles.data(), column.data());
    EXPECT_NEAR(column[11], -7.5f, 7.5e-3);
  }
}

// F05: NaN and infinity are refused before a byte is written.
TEST_P(EveryCodec, F05_NotFiniteIsRefused) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (const bool in_key : {true, false}) {
      CodecHarness h(Case());
      h.MakeRows(128, 7, 1.0f);
      h.FreezeState();
      ASSERT_FALSE(h.EncodeAll());
      const auto before = h.pages();
      (in_key ? h.key_rows() : h.value_rows())[70 * 128 + 5] = bad;
      (in_key ? h.raw_key_rows() : h.value_rows())[70 * 128 + 5] = bad;
      EXPECT_TRUE(static_cast<bool>(h.EncodeSlots(1, 0, 64)));
      EXPECT_EQ(h.pages(), before);
    }
  }
}

// F13: every head size, also K and V of unlike sizes, restores as head size 64 does, and its padding is counted.
TEST_P(EveryCodec, F13_HeadSizes) {
  const int sizes[][2] = {{16, 16},   {64, 64},   {80, 80},   {96, 96},  {100, 100},
                          {112, 112}, {128, 128}, {192, 128}, {256, 256}};
  for (const auto& [dk, dv] : sizes) {
    CodecCase c = Case();
    c.dk = dk, c.dv = dv;
    c.pairing = dk % 3 == 0 ? RopePairing::kHalfSplit : RopePairing::kInterleaved;
    CodecHarness h(c);
    ASSERT_TRUE(h.ok()) << h.error();
    h.MakeRows(256, 8, 1.0f);
    h.FreezeState();
    ASSERT_FALSE(h.EncodeAll());
    EXPECT_LT(KeyError(h).value(), ErrorBound(bits())) << dk;
    // One range covers all dv numbers of a token in int and nf: it grows as the extremes of dv Gaussian numbers do.
    const double spread = std::max(1.0, std::sqrt(std::log(dv) / std::log(64.0)));
    EXPECT_LT(ValueError(h).value(), spread * ErrorBound(bits())) << dv;
    if (row().rate > 0) continue;  // heads differ; padding is inside the rate (tc_test.cc)
    EXPECT_GE(h.codec().PageSize(0, 0).k * 8, int64_t{64} * dk * bits());
  }
}

TEST_P(EveryCodec, OtherBlockSizes) {
  for (const int block : {16, 32, 128}) {
    CodecCase c = Case();
    c.block = block;
    CodecHarness h(c);
    ASSERT_TRUE(h.ok()) << h.error();
    h.MakeRows(256, 9, 1.0f);
    h.FreezeState();
    ASSERT_FALSE(h.EncodeAll());
    EXPECT_LT(KeyError(h).value(), ErrorBound(bits())) << block;
    EXPECT_LT(ValueError(h).value(), ErrorBound(bits())) << block;
  }
}

// The same keys before RoPE at far positions are restored as well as at near ones.
TEST_P(EveryCodec, FarPositions) {
  for (const int64_t begin : {int64_t{0}, int64_t{1} << 20, int64_t{10'000'000} / 64 * 64}) {
    CodecHarness h(Case());
    h.MakeRows(256, 10, 2.0f);
    h.FreezeState();
    h.set_begin(begin);
    ASSERT_FALSE(h.EncodeAll());
    EXPECT_LT(KeyError(h).value(), ErrorBound(bits())) << begin;
  }
}

TEST_P(EveryCodec, UnknownOptionsAreRefused) {
  CodecCase c = Case();
  c.flags = {"no-such-thing"};
  CodecHarness h(c);
  EXPECT_FALSE(h.ok());
  EXPECT_NE(h.error().find("no-such-thing"), std::string::npos) << h.error();
  EXPECT_NE(h.error().find(row().name), std::string::npos) << h.error();
}

TEST(CodecTable, BadShapesAreRefusedByName) {
  CodecCase c;
  c.dk = 1024;
  EXPECT_NE(CodecHarness(c).error().find("1024"), std::string::npos);
  c.dk = 64, c.block = 24;
  EXPECT_NE(CodecHarness(c).error().find("24"), std::string::npos);
  c.block = 256;
  EXPECT_NE(CodecHarness(c).error().find("256"), std::string::npos);
  EXPECT_EQ(FindCodec("rot5"), nullptr);
}

}  // namespace
}  // namespace kvring
