// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>

#include "tests/kernels/plain_codec.h"
#include "tests/kernels/simd_targets.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

struct Case {
  int dk = 64, dv = 64, block = 64;
  int64_t length = 200;             // tokens of the sequence
  int group = 3;                    // query rows per position
  int64_t first = 150, count = 50;  // query positions
  Visibility visibility = Visibility::kExactCell;
  int64_t cell = 128;
  KeyDomain domain = KeyDomain::kPostRope;
  bool lossless = false, page_scoped = false;
  int sinks = 0;
  float spread = 1.0f;    // of the keys
  bool outliers = false;  // a few keys that a softmax must not lose, and many it may
};

// A sequence of pages with exact rows in every page and NaN wherever nothing may be read.
class Scene {
 public:
  explicit Scene(const Case& c, uint32_t seed = 1) : c_(c) {
    rope_ = MakeRopeTable(RopePairing::kHalfSplit, c.dk, c.dk / 2 * 2, 10000.0, {});
    CodecTraits traits;
    traits.id = "plain";
    traits.key_domain = c.domain;
    traits.lossless = c.lossless;
    traits.sink_tokens = c.sinks;
    if (c.page_scoped) traits.k_scope = ParamScope::kPage;
    codec_ =
        std::make_unique<PlainCodec>(traits, KvShape{1, c.group, 1, c.dk, c.dv, c.block}, &rope_);
    MakePages(seed);
    MakeQueries(seed + 1000);
  }

  AttendArgs Args() const {
    AttendArgs args;
    args.codec = codec_.get();
    args.block_tokens = c_.block;
    args.rope = &rope_;
    args.dk = c_.dk;
    args.dv = c_.dv;
    args.pages = pages_;
    args.positions = positions_;
    args.raw_q = raw_q_.data();
    args.packed_q = packed_q_.data();
    args.rule = {c_.visibility, c_.cell};
    args.chunk_begin = c_.first;
    return args;
  }

  // The rows [first, first + count) of Args().
  AttendArgs Rows(int64_t first, int64_t count) const {
    AttendArgs args = Args();
    args.positions = args.positions.subspan(first, count);
    args.raw_q += first * c_.dk;
    args.packed_q += first * c_.dk;
    return args;
  }

  int64_t rows() const { return static_cast<int64_t>(positions_.size()); }
  std::vector<PageView>& pages() { return pages_; }
  std::vector<int64_t>& positions() { return positions_; }
  std::vector<float>& raw_q() { return raw_q_; }

  // |error| of an output element, from |q| |k| and |v| of the scene: a logit is a chain of dk fused products, a weight has
  // ln 2 times its error and exp2's 2 u; numerator and denominator have it once each, with sums of up to `length` terms.
  Tolerance OutputTolerance() const {
    const double logit = (c_.dk + 2) * kUnitF32 * most_qk_;
    const double weight = std::log(2.0) * logit + 2 * kUnitF32;
    return {(2 * weight + (2 * static_cast<double>(c_.length) + 4) * kUnitF32) * most_v_, 0};
  }

 private:
  void MakePages(uint32_t seed) {
    const int64_t blocks = (c_.length + c_.block - 1) / c_.block;
    const Half nan = 0x7e00;
    // Rows are longer than dk and dv: strides are the view's.
    const int64_t ks = c_.dk + 3, vs = c_.dv + 5;
    const int page_halves = c_.block * (c_.dk + c_.dv);
    packed_.assign(blocks * page_halves, nan);
    exact_k_.assign(blocks * c_.block * ks, nan);
    exact_v_.assign(blocks * c_.block * vs, nan);
    sink_k_.assign(c_.sinks * ks, nan);
    sink_v_.assign(c_.sinks * vs, nan);
    for (int64_t b = 0; b < blocks; ++b) {
      PageView page;
      page.begin = b * c_.block;
      page.tokens = static_cast<int>(std::min<int64_t>(c_.block, c_.length - page.begin));
      Half* packed = packed_.data() + b * page_halves;
      FillPage(seed + static_cast<uint32_t>(b), b, page.tokens, ks, vs, packed);
      page.packed = reinterpret_cast<const uint8_t*>(packed);
      page.exact_k = exact_k_.data() + b * c_.block * ks;
      page.exact_v = exact_v_.data() + b * c_.block * vs;
      page.exact_k_stride = ks;
      page.exact_v_stride = vs;
      if (b == 0 && c_.sinks > 0) {
        page.sinks = std::min(c_.sinks, page.tokens);
        page.sink_k = sink_k_.data();
        page.sink_v = sink_v_.data();
        page.sink_k_stride = ks;
        page.sink_v_stride = vs;
      }
      pages_.push_back(page);
    }
  }

  void FillPage(uint32_t seed, int64_t b, int tokens, int64_t ks, int64_t vs, Half* packed) {
    const auto k = NormalFloats(int64_t{2} * tokens * c_.dk, seed, c_.spread);
    const auto v = NormalFloats(int64_t{2} * tokens * c_.dv, seed + 500);
    for (int t = 0; t < tokens; ++t) {
      const float scale = !c_.outliers ? 1.0f : (b * c_.block + t) % 29 == 7 ? 8.0f : 0.5f;
      for (int i = 0; i < c_.dk; ++i) {
        const Half exact = FloatToHalf(k[t * c_.dk + i] * scale);
        const Half coarse = FloatToHalf(k[(tokens + t) * c_.dk + i] * scale);
        exact_k_[(b * c_.block + t) * ks + i] = exact;
        packed[t * c_.dk + i] = b == 0 && t < c_.sinks ? Half{0x7e00} : coarse;
        if (b == 0 && t < c_.sinks) sink_k_[t * ks + i] = exact;
        most_k_ =
            std::max({most_k_, std::fabs(HalfToFloat(exact)), std::fabs(HalfToFloat(coarse))});
      }
      for (int i = 0; i < c_.dv; ++i) {
        const Half exact = FloatToHalf(v[t * c_.dv + i]);
        const Half coarse = FloatToHalf(v[(tokens + t) * c_.dv + i]);
        exact_v_[(b * c_.block + t) * vs + i] = exact;
        packed[c_.block * c_.dk + t * c_.dv + i] = b == 0 && t < c_.sinks ? Half{0x7e00} : coarse;
        if (b == 0 && t < c_.sinks) sink_v_[t * vs + i] = exact;
        most_v_ =
            std::max({most_v_, std::fabs(HalfToFloat(exact)), std::fabs(HalfToFloat(coarse))});
      }
    }
  }

  void MakeQueries(uint32_t seed) {
    for (int64_t p = 0; p < c_.count; ++p) {
      for (int g = 0; g < c_.group; ++g) positions_.push_back(c_.first + p);
    }
    raw_q_ = NormalFloats(rows() * c_.dk, seed, 1.5f / std::sqrt(static_cast<float>(c_.dk)));
    packed_q_.resize(raw_q_.size());
    codec_->PrepareQuery(0, 0, nullptr, raw_q_.data(), rows(), packed_q_.data());
    for (int64_t r = 0; r < rows(); ++r) {
      double sum = 0;
      // A rotation can bring a plane's two channels into one: sqrt 2.
      for (int i = 0; i < c_.dk; ++i)
        sum += std::fabs(raw_q_[r * c_.dk + i]) * most_k_ * std::sqrt(2.0);
      most_qk_ = std::max(most_qk_, sum);
    }
  }

  Case c_;
  RopeTable rope_;
  std::unique_ptr<PlainCodec> codec_;
  std::vector<Half> packed_, exact_k_, exact_v_, sink_k_, sink_v_;
  std::vector<PageView> pages_;
  std::vector<int64_t> positions_;
  std::vector<float> raw_q_, packed_q_;
  float most_k_ = 0, most_v_ = 0;
  double most_qk_ = 0;
};

// m, l and o of one call, between guards.
struct Result {
  Result(int64_t rows, int64_t dv)
      : rows(rows), dv(dv), storage(PartialFloats(rows, dv) + 64, 12345.0f) {
    MakeEmpty(view());
  }
  SoftmaxPartial view() { return PartialAt(storage.data() + 32, rows, dv); }
  std::vector<float> Output() {
    std::vector<float> out(static_cast<size_t>(rows * dv));
    Finalize(view(), out.data());
    return out;
  }
  std::vector<float> Floats() { return {storage.begin() + 32, storage.end() - 32}; }
  bool GuardsStand() const {
    return std::all_of(storage.begin(), storage.begin() + 32,
                       [](float x) { return x == 12345.0f; }) &&
           std::all_of(storage.end() - 32, storage.end(), [](float x) { return x == 12345.0f; });
  }
  int64_t rows, dv;
  std::vector<float> storage;
};

Result Attend(const AttendArgs& args) {
  Result result(static_cast<int64_t>(args.positions.size()), args.dv);
  AttendScratch scratch;
  AttendPages(args, scratch, result.view());
  EXPECT_TRUE(result.GuardsStand());
  return result;
}

Result AttendRef(const AttendArgs& args) {
  Result result(static_cast<int64_t>(args.positions.size()), args.dv);
  AttendPagesRef(args, result.view());
  return result;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (auto [dk, dv] : {std::pair{64, 64},
                        {80, 80},
                        {96, 96},
                        {100, 100},
                        {112, 112},
                        {128, 128},
                        {192, 128},
                        {64, 100},
                        {20, 7},
                        {1, 1},
                        {33, 2}}) {
    cases.push_back({.dk = dk, .dv = dv});
    cases.push_back(
        {.dk = dk, .dv = dv, .length = 70, .group = 1, .first = 69, .count = 1, .sinks = 4});
  }
  for (Visibility v : {Visibility::kExactCell, Visibility::kPacked, Visibility::kTeacher,
                       Visibility::kExactChunk}) {
    for (KeyDomain domain : {KeyDomain::kPreRope, KeyDomain::kPostRope}) {
      for (bool page : {false, true}) {
        cases.push_back({.length = 400,
                         .first = 100,
                         .count = 250,
                         .visibility = v,
                         .domain = domain,
                         .page_scoped = page,
                         .sinks = 3});
      }
    }
    cases.push_back({.length = 300, .first = 0, .count = 300, .visibility = v, .lossless = true});
  }
  for (int block : {1, 8, 16, 20, 32, 128})
    cases.push_back({.block = block, .length = 150, .first = 90, .count = 60, .cell = block * 4});
  for (float spread : {0.01f, 10.0f}) cases.push_back({.spread = spread});
  cases.push_back({.length = 1000, .first = 900, .count = 20, .outliers = true});
  for (int group : {1, 2, 4, 5, 6, 7, 13}) cases.push_back({.group = group, .count = 3});
  return cases;
}

TEST(Attention, AgreesWithTheReference) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(testing::Message() << "dk " << c.dk << " dv " << c.dv << " block " << c.block
                                    << " length " << c.length << " first " << c.first
                                    << " visibility " << static_cast<int>(c.visibility));
    Scene scene(c);
    Result want = AttendRef(scene.Args());
    ASSERT_EQ(FindNonFinite(want.view()), -1);
    ForEachSimdTarget([&](int64_t) {
      Result got = Attend(scene.Args());
      EXPECT_EQ(FindNonFinite(got.view()), -1);
      EXPECT_TRUE(AllNear(got.Output(), want.Output(), scene.OutputTolerance()));
    });
  }
}

// The reference itself against the definition written out once more, for one case that can be read at a glance.
TEST(Attention, TheReferenceIsSoftmaxOverVisibleKeys) {
  Case c{.dk = 8,
         .dv = 5,
         .block = 16,
         .length = 20,
         .group = 1,
         .first = 17,
         .count = 1,
         .lossless = true};
  Scene scene(c);
  std::vector<double> o(5), logits;
  double l = 0;
  const AttendArgs args = scene.Args();
  for (int t = 0; t <= 17; ++t) {
    const PageView& page = args.pages[t / 16];
    const auto* halves = reinterpret_cast<const Half*>(page.packed);
    double s = 0;
    for (int i = 0; i < 8; ++i)
      s += static_cast<double>(args.raw_q[i]) * HalfToFloat(halves[t % 16 * 8 + i]);
    const double w = std::exp2(s);
    l += w;
    for (int i = 0; i < 5; ++i) o[i] += w * HalfToFloat(halves[16 * 8 + t % 16 * 5 + i]);
  }
  Result got = AttendRef(args);
  const auto out = got.Output();
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(out[i], o[i] / l, 4 * kUnitF32 * 6);
}

// Row r's bits are its own: any number of rows in the call, any division of the rows, any instruction set with fused
// multiply-add.
TEST(Attention, ARowHasTheSameBitsInEveryCompany) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(testing::Message() << "dk " << c.dk << " dv " << c.dv << " block " << c.block
                                    << " length " << c.length);
    Scene scene(c);
    std::vector<float> fused;
    ForEachSimdTarget([&](int64_t target) {
      Result all = Attend(scene.Args());
      if (target == HWY_AVX2 || target == HWY_AVX3) {
        if (fused.empty()) fused = all.Floats();
        EXPECT_TRUE(SameBits(all.Floats(), fused));
      }
      for (int64_t step : {1, 2, 3, 5, 6, 7, 48}) {
        if (scene.rows() / step > 60)
          continue;  // the smallest steps on the smaller cases are enough
        Result parts(scene.rows(), c.dv);
        AttendScratch scratch;
        for (int64_t r = 0; r < scene.rows(); r += step) {
          const int64_t n = std::min(step, scene.rows() - r);
          AttendPages(scene.Rows(r, n), scratch, parts.view().Slice(r, n));
        }
        ASSERT_TRUE(SameBits(parts.Floats(), all.Floats())) << step << " rows a call";
      }
    });
  }
}

// Positions far apart in one call, as gather-Q and many sequences' chunks have them: companions that see more or fewer
// keys of a page change nothing.
TEST(Attention, CompanionsThatSeeMoreOrLessChangeNoBit) {
  Case c{.length = 300, .group = 1, .first = 0, .count = 300, .lossless = true};
  Scene scene(c);
  Result all = Attend(scene.Args());
  for (int64_t r = 0; r < 300; ++r) {
    Result one = Attend(scene.Rows(r, 1));
    ASSERT_EQ(one.view().m[0], all.view().m[r]);
    ASSERT_EQ(one.view().l[0], all.view().l[r]);
    ASSERT_TRUE(SameBits({one.view().o, 64}, {all.view().o + r * 64, 64})) << r;
  }
}

// A codec that reads its packed pages itself: it is asked for exactly the rows that read packed, and its answer stands.
class OwnReader final : public PlainCodec {
 public:
  using PlainCodec::PlainCodec;
  int64_t AttendPacked(const AttendArgs& args, std::span<const PageView> pages, int64_t first,
                       int64_t last, AttendScratch&, const SoftmaxPartial& partial) const override {
    AttendArgs rows = args;
    rows.pages = pages.first(1);
    rows.positions = args.positions.subspan(first, last - first);
    rows.raw_q += first * args.dk;
    rows.packed_q += first * args.dk;
    AttendPagesRef(rows, partial.Slice(first, last - first));
    rows_read += last - first;
    return 1;
  }
  mutable int64_t rows_read = 0;
};

TEST(Attention, ACodecMayReadItsPagesItself) {
  Case c{.length = 300, .group = 2, .first = 200, .count = 40, .cell = 64};
  Scene scene(c);
  const RopeTable rope = MakeRopeTable(RopePairing::kHalfSplit, c.dk, c.dk, 10000.0, {});
  OwnReader reader(scene.Args().codec->traits(), KvShape{1, c.group, 1, c.dk, c.dv, c.block},
                   &rope);
  AttendArgs args = scene.Args();
  args.codec = &reader;
  Result own = Attend(args), tiles = Attend(scene.Args());
  // Queries 200..239 lie in the cell and page of 192: pages 0, 64 and 128 are read packed by all 80 rows.
  EXPECT_EQ(reader.rows_read, 3 * 80);
  const int64_t n = scene.rows() * c.dv;
  for (int64_t i = 0; i < n; ++i) {
    // Two ways to the same sum of 192 + 48 terms: the reference in double, the tiles in fp32.
    ASSERT_NEAR(own.view().o[i], tiles.view().o[i],
                240 * 0x1p-22f * (1 + std::abs(tiles.view().o[i])))
        << i;
  }
}

// What a chunk sees of a page that is still growing equals what it sees of the finished one.
TEST(Attention, LaterTokensOfAPageChangeNoBit) {
  Case c{.length = 128, .group = 2, .first = 70, .count = 20, .lossless = true};
  Scene scene(c);
  Result finished = Attend(scene.Args());
  for (int64_t r = 0; r < scene.rows(); ++r) {
    Scene growing(c);
    growing.pages()[1].tokens = static_cast<int>(scene.positions()[r] - 64 + 1);
    Result one = Attend(growing.Rows(r, 1));
    ASSERT_TRUE(SameBits({one.view().o, 64}, {finished.view().o + r * 64, 64})) << r;
    ASSERT_EQ(one.view().l[0], finished.view().l[r]);
  }
}

TEST(Attention, AnySplitOfPagesMergesToTheWhole) {
  for (const Case& c : {Case{.length = 700, .first = 600, .count = 40},
                        Case{.length = 700, .first = 600, .count = 40, .outliers = true}}) {
    Scene scene(c);
    Result whole = Attend(scene.Args());
    for (uint32_t seed = 0; seed < 10; ++seed) {
      std::mt19937 generator(seed);
      Result merged(scene.rows(), c.dv);
      std::vector<std::vector<PageView>> parts(1 + seed % 4);
      for (const PageView& page : scene.pages()) parts[generator() % parts.size()].push_back(page);
      for (const auto& part : parts) {  // some may hold no page at all
        AttendArgs args = scene.Args();
        args.pages = part;
        Merge(merged.view(), Attend(args).view());
      }
      EXPECT_TRUE(AllNear(merged.Output(), whole.Output(), scene.OutputTolerance()));
    }
  }
}

// Page by page into one partial is the same as all at once, bit for bit: that is what streaming a shard relies on.
TEST(Attention, ContinuingAPartialIsTheSameAsOneCall) {
  Scene scene({.length = 500, .first = 450, .count = 30});
  Result whole = Attend(scene.Args());
  Result steps(scene.rows(), 64);
  AttendScratch scratch;
  for (const PageView& page : scene.pages()) {
    AttendArgs args = scene.Args();
    args.pages = {&page, 1};
    AttendPages(args, scratch, steps.view());
  }
  EXPECT_TRUE(SameBits(steps.Floats(), whole.Floats()));
}

TEST(Attention, ARowThatSeesNoKeyIsNotTouched) {
  Scene scene({.length = 256, .group = 2, .first = 0, .count = 200});
  AttendArgs args = scene.Args();
  const std::vector<PageView> late(scene.pages().begin() + 2, scene.pages().end());
  args.pages = late;
  Result got = Attend(args);
  for (int64_t r = 0; r < scene.rows(); ++r)
    EXPECT_EQ(got.view().l[r] == 0.0f, scene.positions()[r] < 128) << r;
  // The floats of rows before the first page are whatever they were, even when they are no numbers.
  Result poisoned(scene.rows(), 64);
  std::fill_n(poisoned.view().o, 128 * 2 * 64, static_cast<float>(NAN));
  const auto before = poisoned.Floats();
  AttendScratch scratch;
  AttendPages(args, scratch, poisoned.view());
  const auto after = poisoned.Floats();
  const int64_t o = 2 * scene.rows();
  EXPECT_TRUE(SameBits({after.data() + o, 128 * 2 * 64}, {before.data() + o, 128 * 2 * 64}));
  Result wanted = AttendRef(args);
  for (int64_t r = 256; r < scene.rows(); ++r) EXPECT_GT(wanted.view().l[r], 0.0f);
}

TEST(Attention, NoPagesAndNoRowsAreFine) {
  Scene scene({});
  AttendArgs args = scene.Args();
  args.pages = {};
  Result got = Attend(args);
  EXPECT_EQ(got.view().l[0], 0.0f);
  Attend(scene.Rows(0, 0));
  std::vector<PageView> unused(1, scene.pages()[0]);
  unused[0].tokens = 0;
  args.pages = unused;
  EXPECT_EQ(Attend(args).view().l[0], 0.0f);
}

// Scores near -60,000 are scores; only position masks.
TEST(Attention, VeryLowAndVeryHighScoresStillWin) {
  Case c{.length = 130, .group = 1, .first = 100, .count = 30, .lossless = true};
  for (float scale : {-4000.0f, 4000.0f}) {
    Scene scene(c);
    // A query along the sum of all channels, with keys shifted the same way: logits near scale * 16.
    AttendArgs args = scene.Args();
    std::vector<float> q(scene.raw_q().size(), scale / 4), turned(q.size());
    args.codec->PrepareQuery(0, 0, nullptr, q.data(), scene.rows(), turned.data());
    args.raw_q = q.data();
    args.packed_q = turned.data();
    Result got = Attend(args), want = AttendRef(args);
    EXPECT_EQ(FindNonFinite(got.view()), -1);
    float most = 0;
    for (int64_t r = 0; r < scene.rows(); ++r) most = std::max(most, std::fabs(got.view().m[r]));
    EXPECT_GT(most, 10000.0f);
    // Logits of 1e4 and more differ by far more than their rounding (64 * u * 6e4 = 0.25): one key has the row, unless two
    // lie within a few units; then only the denominator's sign of life is asked for.
    for (int64_t r = 0; r < scene.rows(); ++r) {
      EXPECT_GE(got.view().l[r], 1.0f);
      EXPECT_NEAR(got.view().m[r], want.view().m[r], 66 * kUnitF32 * std::fabs(scale / 4) * 64 * 6);
    }
  }
}

TEST(Attention, ANaNInAKeyIsFoundAfterwards) {
  Case c{.length = 64, .group = 1, .first = 60, .count = 4, .lossless = true};
  Scene scene(c);
  AttendArgs args = scene.Args();
  std::vector<float> q(scene.raw_q());
  q[64 + 3] = NAN;
  std::vector<float> turned(q.size());
  args.codec->PrepareQuery(0, 0, nullptr, q.data(), scene.rows(), turned.data());
  args.raw_q = q.data();
  args.packed_q = turned.data();
  ForEachSimdTarget([&](int64_t) { EXPECT_EQ(FindNonFinite(Attend(args).view()), 1); });
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

TEST(Attention, TheSinkGetsEveryVisibleScoreOnce) {
  Scene scene({.length = 200, .group = 2, .first = 100, .count = 80, .lossless = true});
  AttendArgs args = scene.Args();
  CollectScores sink;
  args.scores = &sink;
  Result got = Attend(args);
  std::vector<double> l(static_cast<size_t>(scene.rows()));
  std::vector<int64_t> keys(l.size());
  for (const auto& score : sink.scores) {
    EXPECT_LE(score.key, scene.positions()[score.row]);
    l[score.row] += std::exp2(static_cast<double>(score.logit) - got.view().m[score.row]);
    ++keys[score.row];
  }
  for (int64_t r = 0; r < scene.rows(); ++r) {
    EXPECT_EQ(keys[r], scene.positions()[r] + 1);
    EXPECT_NEAR(l[r], got.view().l[r], l[r] * 220 * kUnitF32);
  }
}

// A page without packed bytes is read exact whatever the rule says, and one without exact rows packed.
TEST(Attention, MissingPartsDecide) {
  for (Visibility rule : {Visibility::kExactCell, Visibility::kPacked}) {
    Case exact_case{.visibility = Visibility::kExactCell, .cell = 1 << 20};
    Case packed_case{.visibility = Visibility::kPacked};
    Result all_exact = Attend(Scene(exact_case).Args()),
           all_packed = Attend(Scene(packed_case).Args());
    Case c{.visibility = rule};
    Scene no_packed(c), no_exact(c);
    for (PageView& page : no_packed.pages()) page.packed = nullptr;
    for (PageView& page : no_exact.pages()) page.exact_k = page.exact_v = nullptr;
    EXPECT_TRUE(SameBits(Attend(no_packed.Args()).Floats(), all_exact.Floats()));
    EXPECT_TRUE(SameBits(Attend(no_exact.Args()).Floats(), all_packed.Floats()));
    EXPECT_FALSE(SameBits(all_exact.Floats(), all_packed.Floats()));
  }
}

}  // namespace
}  // namespace kvring
