// SPDX-License-Identifier: Apache-2.0
// Attention by integer dot products on the packed pages of `rot` and `tc`: the same bits as the plain form on every instruction set
// with fused multiply-add, whatever the company of a row; near to what the decoded numbers give.
#define HWY_WANT_AVX3_DL  // the newest x86 target is attainable here too

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "kernels/codec/lloyd_max.h"
#include "kernels/codec/tc_bits.h"
#include "kernels/codec/tc_model.h"
#include "kernels/ref/packed_attention.h"
#include "tests/kernels/codec/codec_harness.h"
#include "tests/kernels/simd_targets.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

struct PackedCase {
  CodecCase codec;
  int64_t length = 300;
  int64_t first = 290, count = 10;  // query positions
  int64_t begin = 0;                // position of the sequence's first block
  float bias = 2.0f;                // of the keys' mean
};

// A packed sequence and queries of one KV head.
class PackedScene {
 public:
  explicit PackedScene(const PackedCase& c) : c_(c), harness_(c.codec) {
    harness_.MakeRows(c.length, 7, c.bias);
    harness_.FreezeState();
    if (c.begin > 0) harness_.set_begin(c.begin);
    EXPECT_FALSE(harness_.EncodeAll());
    const int64_t blocks = (c.length + c.codec.block - 1) / c.codec.block;
    for (int64_t b = 0; b < blocks; ++b) {
      pages_.push_back(harness_.View(b, 1));
      if (pages_.back().sinks == 0) continue;
      sink_k_.assign(pages_[0].sink_k, pages_[0].sink_k + pages_[0].sinks * c.codec.dk);
      sink_v_.assign(pages_[0].sink_v, pages_[0].sink_v + pages_[0].sinks * c.codec.dv);
      pages_[0].sink_k = sink_k_.data(), pages_[0].sink_v = sink_v_.data();
    }
    const int group = c.codec.query_heads / c.codec.kv_heads;
    for (int64_t p = 0; p < c.count; ++p)
      positions_.insert(positions_.end(), group, c.begin + c.first + p);
    raw_q_ = NormalFloats(rows() * c.codec.dk, 11, 1.44f / std::sqrt(float(c.codec.dk)));
    packed_q_.resize(raw_q_.size());
    harness_.codec().PrepareQuery(0, 1, harness_.State(1), raw_q_.data(), rows(), packed_q_.data());
  }

  // The plain form over all pages.
  std::vector<float> Plain() {
    const AttendArgs args = Args();
    std::vector<float> storage(static_cast<size_t>(PartialFloats(rows(), args.dv)), 1.0f);
    const SoftmaxPartial partial = PartialAt(storage.data(), rows(), args.dv);
    MakeEmpty(partial);
    const PageTurns turns(*args.rope, 64);
    if (!IsTc()) {
      AttendPackedRef(Form(), turns, args, partial);
      return storage;
    }
    const TcPageRef form = TcForm();
    std::vector<float> o(static_cast<size_t>(rows() * args.dv), 0.0f);
    std::vector<float> o_m(static_cast<size_t>(rows()), -INFINITY);
    AttendPackedRef(form, turns, args, partial, o.data(), o_m.data());
    if (form.state != nullptr) FinishTcPackedRef(form, o.data(), o_m.data(), partial);
    return storage;
  }

  AttendArgs Args(int64_t first = 0, int64_t count = -1) const {
    AttendArgs args;
    args.codec = &harness_.codec();
    args.head = 1;
    args.state = harness_.State(1);
    args.block_tokens = c_.codec.block;
    args.rope = &harness_.rope();
    args.dk = c_.codec.dk, args.dv = c_.codec.dv;
    args.pages = pages_;
    args.positions =
        std::span<const int64_t>(positions_).subspan(first, count < 0 ? rows() - first : count);
    args.raw_q = raw_q_.data() + first * args.dk;
    args.packed_q = packed_q_.data() + first * args.dk;
    args.rule = {Visibility::kTeacher, 512};
    args.form.math = AttentionMath::kInt8;
    return args;
  }

  RotPageRef Form() const {
    RotPageRef form;
    const CodecRow* row = FindCodec(c_.codec.name);
    form.bits = row->bits, form.dk = c_.codec.dk, form.dv = c_.codec.dv;
    form.rope = &harness_.rope();
    if (HasMean()) form.mean = harness_.State(1);
    return form;
  }

  bool IsTc() const { return c_.codec.name[0] == 't'; }
  TcPageRef TcForm() {
    const CodecCase& c = c_.codec;
    const KvShape shape{1, c.query_heads, c.kv_heads, c.dk, c.dv, c.block};
    model_ = std::make_unique<TcModel>(c.tables, shape);
    const TcModel::Bits bits = model_->Allocate(ParseTcRate(c.name));
    return {c.block,      &harness_.rope(), model_->Key(0, 1), model_->Value(0, 1),
            bits.keys[1], bits.values[1],   harness_.State(1)};
  }
  bool HasMean() const {
    return std::find(c_.codec.flags.begin(), c_.codec.flags.end(), "no-mean") ==
           c_.codec.flags.end();
  }
  int64_t rows() const { return static_cast<int64_t>(positions_.size()); }
  std::vector<float>& raw_q() { return raw_q_; }
  std::vector<float>& packed_q() { return packed_q_; }
  std::vector<PageView>& pages() { return pages_; }

 private:
  PackedCase c_;
  CodecHarness harness_;
  std::vector<PageView> pages_;
  std::vector<int64_t> positions_;
  std::vector<float> raw_q_, packed_q_;
  std::vector<Half> sink_k_, sink_v_;
  std::unique_ptr<TcModel> model_;
};

std::vector<float> Attend(const AttendArgs& args) {
  const int64_t rows = static_cast<int64_t>(args.positions.size());
  std::vector<float> storage(static_cast<size_t>(PartialFloats(rows, args.dv)), 1.0f);
  MakeEmpty(PartialAt(storage.data(), rows, args.dv));
  AttendScratch scratch;
  AttendPages(args, scratch, PartialAt(storage.data(), rows, args.dv));
  return storage;
}

PackedCase Case(const std::string& name, int dk = 64, int dv = 64, int group = 2) {
  PackedCase c;
  c.codec.name = name;
  c.codec.dk = dk, c.codec.dv = dv;
  c.codec.query_heads = group * c.codec.kv_heads;
  return c;
}

// tc with directions of unlike weight, so that classes of every width and of none occur.
PackedCase TcCase(const std::string& name, int dk = 64, int dv = 64, int group = 2,
                  bool adapt = false) {
  PackedCase c = Case(name, dk, dv, group);
  const KvShape shape{1, c.codec.query_heads, c.codec.kv_heads, dk, dv, 64};
  c.codec.tables = TestTcTables(shape, {.mean = 1.0f, .uneven = 0.97f});
  if (!adapt) return c;
  c.codec.flags = {"adapt"};
  c.length = 700, c.first = 690;
  return c;
}

// Every row of a whole prompt: rows that see a sink or two, part of a page, all.
PackedCase WholePrompt(const std::string& name) {
  PackedCase c = Case(name);
  c.length = c.count = 200;
  c.first = 0;
  return c;
}

PackedCase WholeTcPrompt() {
  PackedCase c = TcCase("tc3");
  c.length = c.count = 200;
  c.first = 0;
  return c;
}

PackedCase FarAway() {
  PackedCase c = Case("rot3");
  c.codec.pairing = RopePairing::kHalfSplit;
  c.length = 256;
  c.first = 250, c.count = 6;
  c.begin = int64_t{64} * 1'000'003;
  c.bias = 5.0f;
  return c;
}

std::vector<PackedCase> Cases() {
  std::vector<PackedCase> cases;
  for (const char* name : {"rot2", "rot3", "rot4", "rot8"}) {
    for (auto [dk, dv] : {std::pair{64, 64}, {128, 128}, {32, 48}, {96, 112}, {256, 64}})
      cases.push_back(Case(name, dk, dv));
    cases.push_back(Case(name));
    cases.back().codec.flags = {"no-mean", "no-balance"};
  }
  for (int group : {1, 3, 4, 5, 8, 13}) cases.push_back(Case("rot4", 64, 64, group));
  cases.push_back(WholePrompt("rot4"));
  cases.push_back(FarAway());
  for (const char* name : {"tc4", "tc3", "tc2", "tc@1.2", "tc@5.5"}) {
    for (auto [dk, dv] : {std::pair{64, 64}, {128, 128}, {16, 48}, {80, 112}, {256, 64}})
      cases.push_back(TcCase(name, dk, dv));
  }
  for (int group : {1, 3, 4, 5, 7, 13}) {
    cases.push_back(TcCase("tc3", 64, 64, group));
    cases.push_back(TcCase("tc2.5", 64, 128, group, true));
  }
  cases.push_back(WholeTcPrompt());
  return cases;
}

std::string Name(const PackedCase& c) {
  return c.codec.name + " dk " + std::to_string(c.codec.dk) + " dv " + std::to_string(c.codec.dv) +
         " query heads " + std::to_string(c.codec.query_heads) + " from " +
         std::to_string(c.begin + c.first);
}

// Builds for one instruction set alone (sanitizers) run that one, whatever is asked for.
bool IsFused(int64_t target) {
  return (HWY_TARGETS & HWY_AVX2) != 0 &&
         (target == HWY_AVX2 || target == HWY_AVX3 || target == HWY_AVX3_DL);
}

// Root mean square of the difference, as a share of `want`'s.
double Deviation(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, power = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    power += double{want[i]} * want[i];
  }
  return std::sqrt(difference / power);
}

std::vector<float> Output(std::vector<float> storage, int64_t rows, int64_t dv) {
  std::vector<float> out(static_cast<size_t>(rows * dv));
  EXPECT_TRUE(Finalize(PartialAt(storage.data(), rows, dv), out.data()));
  return out;
}

TEST(PackedAttention, HasTheBitsOfThePlainForm) {
  for (const PackedCase& c : Cases()) {
    SCOPED_TRACE(Name(c));
    PackedScene scene(c);
    const AttendArgs args = scene.Args();
    const int64_t rows = scene.rows();
    const std::vector<float> want = scene.Plain();
    ForEachSimdTarget([&](int64_t target) {
      const std::vector<float> got = Attend(args);
      if (IsFused(target)) {
        EXPECT_TRUE(SameBits(got, want));
      } else {
        // Steps that are not fused may round a query or a weight to the neighbouring integer.
        EXPECT_LT(Deviation(Output(got, rows, args.dv), Output(want, rows, args.dv)), 0.01);
      }
    });
  }
}

// Row r's bits are its own, whatever number of rows comes with it: below and above where pages are unpacked first.
TEST(PackedAttention, ARowHasTheSameBitsInEveryCompany) {
  std::vector<PackedCase> cases;
  for (const char* name : {"rot2", "rot3", "rot4", "rot8"}) cases.push_back(Case(name, 64, 64, 4));
  for (const char* name : {"tc2", "tc4"}) cases.push_back(TcCase(name, 64, 64, 4));
  for (PackedCase& c : cases) {
    SCOPED_TRACE(Name(c));
    c.length = 330;
    c.first = 130, c.count = 200;  // 800 rows
    PackedScene scene(c);
    ForEachSimdTarget([&](int64_t) {
      const std::vector<float> all = Attend(scene.Args());
      for (int64_t step : {1, 3, 8, 64, 512}) {
        std::vector<float> parts(all.size(), 1.0f);
        const SoftmaxPartial partial = PartialAt(parts.data(), scene.rows(), 64);
        MakeEmpty(partial);
        AttendScratch scratch;
        for (int64_t r = 0; r < scene.rows(); r += step) {
          const int64_t n = std::min(step, scene.rows() - r);
          AttendPages(scene.Args(r, n), scratch, partial.Slice(r, n));
        }
        EXPECT_TRUE(SameBits(parts, all)) << step << " rows a call";
      }
    });
  }
}

// What a chunk sees of a page that is still growing equals what it sees of the finished one.
TEST(PackedAttention, LaterTokensOfAPageChangeNoBit) {
  for (PackedCase c : {Case("rot3"), TcCase("tc3")}) {
    c.length = 256;
    c.first = 200, c.count = 40;
    PackedScene finished(c), growing(c);
    const std::vector<float> all = Attend(finished.Args());
    for (int64_t r = 0; r < finished.rows(); ++r) {
      growing.pages()[3].tokens = static_cast<int>(c.first + r / 2 - 192 + 1);
      std::vector<float> one = Attend(growing.Args(r, 1));
      const SoftmaxPartial want = PartialAt(const_cast<float*>(all.data()), finished.rows(), 64);
      const SoftmaxPartial got = PartialAt(one.data(), 1, 64);
      ASSERT_EQ(got.l[0], want.l[r]);
      ASSERT_TRUE(SameBits({got.o, 64}, {want.o + r * 64, 64})) << r;
    }
  }
}

// Attention in double over the numbers that the pages stand for; values as the model made them.
std::vector<float> ExactTc(PackedScene& scene) {
  const AttendArgs args = scene.Args();
  const TcPageRef form = scene.TcForm();
  std::vector<double> keys, values;
  for (const PageView& page : args.pages) {
    const std::vector<double> k = TcKeysRef(form, page), v = TcValuesRef(form, page);
    keys.insert(keys.end(), k.begin(), k.end());
    values.insert(values.end(), v.begin(), v.end());
  }
  std::vector<float> out;
  for (int64_t r = 0; r < scene.rows(); ++r) {
    std::vector<double> sum(args.dv, 0.0);
    double l = 0.0;
    for (int64_t t = 0; t <= args.positions[r]; ++t) {
      double logit = 0.0;
      for (int i = 0; i < args.dk; ++i)
        logit += args.raw_q[r * args.dk + i] * keys[t * args.dk + i];
      l += std::exp2(logit);
      for (int i = 0; i < args.dv; ++i) sum[i] += std::exp2(logit) * values[t * args.dv + i];
    }
    for (const double x : sum) out.push_back(static_cast<float>(x / l));
  }
  return out;
}

// The plain form without any rounding is attention over the decoded numbers, and each rounding alone moves it little. Keys
// have a mean of two deviations, so that a bias of the wrong sign or page would move everything.
TEST(PackedAttention, RoundingsAreSmallAndNothingElseChanges) {
  PackedCase mild = TcCase("tc4"), turned = TcCase("tc3", 128, 64, 2, true);
  for (PackedCase* c : {&mild, &turned}) {
    const CodecCase& codec = c->codec;
    c->codec.tables = TestTcTables({1, codec.query_heads, codec.kv_heads, codec.dk, codec.dv, 64},
                                   {.mean = 1, .uneven = 0.6f});
  }
  for (const PackedCase& c : {Case("rot4"), Case("rot2", 128, 128), Case("rot8"), FarAway(),
                              WholePrompt("rot4"), mild, turned}) {
    SCOPED_TRACE(Name(c));
    PackedScene scene(c);
    const int64_t rows = scene.rows();
    AttendArgs args = scene.Args();
    std::vector<float> storage(static_cast<size_t>(PartialFloats(rows, args.dv)));
    MakeEmpty(PartialAt(storage.data(), rows, args.dv));
    AttendPagesRef(args, PartialAt(storage.data(), rows, args.dv));
    const std::vector<float> exact = scene.IsTc() ? ExactTc(scene) : Output(storage, rows, args.dv);
    const auto off = [&] {
      std::vector<float> out = Output(Attend(args), rows, args.dv);
      if (scene.IsTc()) args.codec->FinishOutput(0, 1, out.data(), rows);
      return Deviation(out, exact);
    };
    const auto with = [&](bool query, bool bias, bool weights) {
      args.form = {AttentionMath::kPlainInt8, query, bias, weights};
      return off();
    };
    // Logits of up to some 50 in fp32: 50 * 2^-24 * ln 2 each, and as much from decoded tiles and angles.
    EXPECT_LT(with(false, false, false), 1e-5);
    // A query in 127 steps of its largest: ln 2 sqrt(d) |y| step / sqrt 12 is 1 % at d = 64, a little more at 128.
    EXPECT_LT(with(true, false, false), 0.02);
    // 15 bits of the sum of |z|: 60 or so / 32767 / sqrt 12, for some of 64 numbers.
    EXPECT_LT(with(false, true, false), 2e-3);
    // 255 steps of the largest weight, which is five times the root mean square or so: 5 / 255 / sqrt 12. The tables of tc have
    // another mean than the rows: what is weighed is larger than what comes out, by sqrt 2 and more.
    EXPECT_LT(with(false, false, true), scene.IsTc() ? 0.02 : 0.01);
    EXPECT_LT(with(true, true, true), 0.03);
    args.form = {AttentionMath::kInt8};
    EXPECT_LT(off(), 0.03);
  }
}

// A run of pages goes on where the tables of angles end, by tiles; a page read with another's angles, or not at all, would show.
TEST(PackedAttention, PagesBeyondTheAnglesAreReadAsTiles) {
  constexpr int64_t kPages = int64_t{1} << 20;
  for (const int64_t covered : {int64_t{0}, int64_t{1}, int64_t{8}, int64_t{9}}) {
    for (const char* name : {"rot4", "tc4"}) {
      for (const int group : {2, 13}) {  // rows that look a page ahead, and more of them
        PackedCase c = name[0] == 't' ? TcCase(name, 64, 64, group) : Case(name, 64, 64, group);
        c.length = 64 * (covered + 3);
        c.begin = 64 * (kPages - covered);
        c.first = c.length - 2, c.count = 2;
        SCOPED_TRACE(Name(c));
        PackedScene scene(c);
        AttendArgs args = scene.Args(0, group);  // one position's rows: a run of pages
        const std::vector<float> packed = Output(Attend(args), group, args.dv);
        args.form.math = AttentionMath::kTile;
        const std::vector<float> tiles = Output(Attend(args), group, args.dv);
        EXPECT_LT(Deviation(packed, tiles), 0.03);
        EXPECT_EQ(SameBits(packed, tiles), covered == 0);
      }
    }
  }
}

// Shapes that the integer form has no room for are read as tiles, in the same bits as without it.
TEST(PackedAttention, OtherShapesAreReadAsTiles) {
  PackedCase grouped = Case("rot4", 128, 128), blocks = Case("rot4"), odd = Case("rot4", 80, 80);
  grouped.codec.flags = {"g64"};
  blocks.codec.block = 32;
  const PackedCase odd_tc = TcCase("tc3", 72, 64);
  for (const PackedCase& c : {grouped, blocks, odd, odd_tc}) {
    SCOPED_TRACE(Name(c));
    PackedScene scene(c);
    AttendArgs args = scene.Args();
    const std::vector<float> asked = Attend(args);
    args.form.math = AttentionMath::kTile;
    EXPECT_TRUE(SameBits(asked, Attend(args)));
  }
}

class CollectScores : public ScoreSink {
 public:
  void AddScores(int64_t row, int64_t begin, int64_t count, const float* logits) override {
    for (int64_t i = 0; i < count; ++i) scores.push_back({row, begin + i, logits[i]});
  }
  struct Score {
    int64_t row, key;
    float logit;
  };
  std::vector<Score> scores;
};

TEST(PackedAttention, TheSinkGetsEveryVisibleScoreOnce) {
  for (const PackedCase& c : {WholePrompt("rot4"), WholeTcPrompt()}) {
    SCOPED_TRACE(Name(c));
    PackedScene scene(c);
    CollectScores sink;
    AttendArgs args = scene.Args();
    args.scores = &sink;
    std::vector<float> got = Attend(args);
    const SoftmaxPartial partial = PartialAt(got.data(), scene.rows(), args.dv);
    std::vector<double> l(static_cast<size_t>(scene.rows()));
    std::vector<int64_t> keys(l.size());
    for (const auto& score : sink.scores) {
      EXPECT_LE(score.key, args.positions[score.row]);
      l[score.row] += std::exp2(static_cast<double>(score.logit) - partial.m[score.row]);
      ++keys[score.row];
    }
    for (int64_t r = 0; r < scene.rows(); ++r) {
      EXPECT_EQ(keys[r], args.positions[r] + 1);
      EXPECT_NEAR(l[r], partial.l[r], l[r] * 220 * kUnitF32);  // up to 200 terms, and alpha
    }
  }
}

TEST(PackedAttention, ANaNInAQueryIsFoundAfterwards) {
  for (const PackedCase& c : {Case("rot4"), TcCase("tc3"), TcCase("tc3", 64, 64, 2, true)}) {
    PackedScene scene(c);
    scene.packed_q()[64 + 3] = NAN;
    ForEachSimdTarget([&](int64_t) {
      std::vector<float> got = Attend(scene.Args());
      EXPECT_EQ(FindNonFinite(PartialAt(got.data(), scene.rows(), 64)), 1);
    });
  }
}

// Values of zero, and queries of zero: weights are equal, nothing divides by nothing.
TEST(PackedAttention, ZerosAreZeros) {
  PackedCase c = Case("rot4");
  PackedScene scene(c);
  std::fill(scene.packed_q().begin(), scene.packed_q().end(), 0.0f);
  std::fill(scene.raw_q().begin(), scene.raw_q().end(), 0.0f);
  std::vector<float> got = Attend(scene.Args());
  const SoftmaxPartial partial = PartialAt(got.data(), scene.rows(), 64);
  for (int64_t r = 0; r < scene.rows(); ++r) {
    EXPECT_EQ(partial.m[r], 0.0f);
    EXPECT_EQ(partial.l[r], static_cast<float>(scene.Args().positions[r] + 1));
  }
}

}  // namespace
}  // namespace kvring
