// SPDX-License-Identifier: Apache-2.0
// Pages that are multiplied as they lie, and exact rows, against fp32 tiles of the same numbers: not one bit differs, on no
// instruction set, for any number of rows.
#include <gtest/gtest.h>

#include <map>

#include "kernels/attention.h"
#include "kernels/cpu/attend_tile.h"
#include "tests/kernels/codec/codec_harness.h"
#include "tests/kernels/simd_targets.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

// A codec whose pages are always decoded.
class TileOnly final : public Codec {
 public:
  explicit TileOnly(const Codec& codec) : codec_(&codec) {}
  const CodecTraits& traits() const override { return codec_->traits(); }
  PageBytes PageSize(int layer, int head) const override { return codec_->PageSize(layer, head); }
  Error Encode(const EncodeArgs& args) const override { return codec_->Encode(args); }
  void DecodeKeys(int layer, int head, const float* state, const PageView& page,
                  float* kt) const override {
    codec_->DecodeKeys(layer, head, state, page, kt);
  }
  void DecodeValues(int layer, int head, const float* state, const PageView& page,
                    float* v) const override {
    codec_->DecodeValues(layer, head, state, page, v);
  }

 private:
  const Codec* codec_;
};

struct Rows {
  std::vector<float> q;
  std::vector<int64_t> positions;
  std::vector<float> storage;  // of a partial
};

// Rows at `last` and before, none before `begin`: the first ones see less of the last pages.
Rows MakeRows(int64_t rows, int dk, int dv, int64_t begin, int64_t last) {
  Rows made;
  made.q = NormalFloats(rows * dk, 17, 1.5f / std::sqrt(static_cast<float>(dk)));
  for (int64_t r = 0; r < rows; ++r)
    made.positions.push_back(std::max(begin, last - (rows - 1 - r) / 2));
  made.storage.assign(static_cast<size_t>(PartialFloats(rows, dv)), 0.0f);
  MakeEmpty(PartialAt(made.storage.data(), rows, dv));
  return made;
}

std::vector<float> Attend(AttendArgs args, Rows rows) {
  AttendScratch scratch;
  const auto n = static_cast<int64_t>(rows.positions.size());
  args.raw_q = args.packed_q = rows.q.data();
  args.positions = rows.positions;
  AttendPages(args, scratch, PartialAt(rows.storage.data(), n, args.dv));
  return rows.storage;
}

std::vector<CodecCase> PageCases() {
  std::vector<CodecCase> cases;
  for (const char* name : {"f16", "f32", "int4", "int3", "int2", "nf4", "nf3", "nf2"}) {
    const bool grouped = name[0] != 'f';
    for (auto [dk, dv] : {std::pair{64, 64}, {128, 128}, {80, 96}, {112, 100}}) {
      CodecCase c;
      c.name = name, c.dk = dk, c.dv = dv;
      cases.push_back(c);
      c.pairing = RopePairing::kHalfSplit;
      if (grouped) cases.push_back(c);
      c.flags = {"post-rope"};
      if (grouped && dk == 64) cases.push_back(c);
      c.flags = {}, c.block = 32, c.rotary = dk / 2;
      if (dk == 64) cases.push_back(c);
    }
  }
  return cases;
}

TEST(DirectAttention, PagesGiveTheBitsOfTheirTiles) {
  for (const CodecCase& c : PageCases()) {
    SCOPED_TRACE(testing::Message() << c.name << " dk " << c.dk << " dv " << c.dv << " block "
                                    << c.block << " flags " << c.flags.size());
    CodecHarness h(c);
    ASSERT_TRUE(h.ok()) << h.error();
    const bool whole = h.codec().traits().page_scoped();
    h.MakeRows(whole ? 3 * c.block : 3 * c.block - 11, 5, 1.0f);
    ASSERT_FALSE(h.EncodeAll());
    const PageView views[] = {h.View(0, 1), h.View(1, 1), h.View(2, 1)};
    const TileOnly tiles(h.codec());
    AttendArgs args;
    args.block_tokens = c.block;
    args.rope = &h.rope();
    args.dk = c.dk, args.dv = c.dv;
    args.pages = views;
    args.rule.kind = Visibility::kPacked;
    for (int64_t rows : {1, 2, 3, 4, 6, 8, 13, 30}) {
      std::vector<float> fused;
      ForEachSimdTarget([&](int64_t target) {
        const Rows made = MakeRows(rows, c.dk, c.dv, 0, h.tokens() - 1);
        args.codec = &h.codec();
        const std::vector<float> direct = Attend(args, made);
        ASSERT_GT(direct[rows], 0.0f);  // l of the first row
        args.codec = &tiles;
        ASSERT_TRUE(SameBits(direct, Attend(args, made))) << rows << " rows";
        if (target != HWY_AVX2 && target != HWY_AVX3 && target != HWY_AVX3_DL) return;
        if (fused.empty()) fused = direct;
        ASSERT_TRUE(SameBits(direct, fused)) << rows << " rows";
      });
    }
  }
}

// Tiles of int and nf are the same wherever they are made: instruction sets with long registers look numbers up in a table of the
// row, the others form each by itself.
TEST(DirectAttention, TilesHaveTheSameBitsOnEveryInstructionSet) {
  for (const CodecCase& c : PageCases()) {
    SCOPED_TRACE(testing::Message() << c.name << " dk " << c.dk << " dv " << c.dv);
    CodecHarness h(c);
    h.MakeRows(2 * c.block, 6, 1.0f);
    ASSERT_FALSE(h.EncodeAll());
    std::map<int64_t, std::vector<float>> keys, values;
    ForEachSimdTarget([&](int64_t) {
      for (int64_t block : {0, 1}) {
        if (keys[block].empty()) keys[block] = h.Keys(block, 1), values[block] = h.Values(block, 1);
        EXPECT_TRUE(SameBits(h.Keys(block, 1), keys[block]));
        EXPECT_TRUE(SameBits(h.Values(block, 1), values[block]));
      }
    });
  }
}

struct ExactCase {
  const char* codec;
  int dk, dv, block, tokens;
};

// The exact rows of one page the plain way: each widened and turned by itself, then put into a tile.
std::vector<float> AttendPlainly(const AttendArgs& args, const PageView& page, Rows rows) {
  const int64_t wide = (args.dv + 15) / 16 * 16;
  std::vector<float> kt(static_cast<size_t>(args.dk * args.block_tokens) + kTilePad, 0.0f);
  std::vector<float> v(static_cast<size_t>(args.block_tokens * wide) + kTilePad, 0.0f);
  std::vector<float> key(static_cast<size_t>(args.dk));
  std::vector<float> angles(static_cast<size_t>(2 * args.rope->planes()));
  for (int64_t t = 0; t < page.tokens; ++t) {
    for (int i = 0; i < args.dk; ++i)
      key[i] = HalfToFloat(page.exact_k[t * page.exact_k_stride + i]);
    RopeAngles(*args.rope, page.begin + t, angles.data());
    if (args.codec->traits().key_domain == KeyDomain::kPreRope)
      RopeRotate(*args.rope, angles.data(), key.data());
    for (int i = 0; i < args.dk; ++i) kt[i * args.block_tokens + t] = key[i];
    for (int i = 0; i < args.dv; ++i)
      v[t * args.dv + i] = HalfToFloat(page.exact_v[t * page.exact_v_stride + i]);
  }
  AttendArgs of_rows = args;
  of_rows.positions = rows.positions;
  const auto n = static_cast<int64_t>(rows.positions.size());
  const SoftmaxPartial partial = PartialAt(rows.storage.data(), n, args.dv);
  AttendTileArgs tile = TileOf(of_rows, page, rows.q.data(), 0, n, partial);
  tile.kt = kt.data();
  tile.v = v.data();
  AttendScratch scratch;
  AttendTile(tile, scratch);
  return rows.storage;
}

TEST(DirectAttention, ExactRowsGiveTheBitsOfTheirTiles) {
  const ExactCase cases[] = {
      {"f16", 64, 64, 64, 64},   {"int4", 64, 64, 64, 64},  {"f16", 128, 128, 64, 37},
      {"int4", 128, 96, 64, 37}, {"f16", 80, 80, 64, 5},    {"int4", 112, 100, 64, 17},
      {"int4", 64, 64, 32, 32},  {"nf4", 96, 64, 128, 101}, {"f16", 33, 20, 16, 1}};
  for (const ExactCase& c : cases) {
    for (RopePairing pairing : {RopePairing::kInterleaved, RopePairing::kHalfSplit}) {
      SCOPED_TRACE(testing::Message()
                   << c.codec << " dk " << c.dk << " dv " << c.dv << " tokens " << c.tokens);
      CodecCase made;
      made.name = c.codec, made.dk = c.dk, made.dv = c.dv, made.block = c.block;
      made.pairing = pairing, made.rotary = c.dk / 4 * 2;
      CodecHarness h(made);
      ASSERT_TRUE(h.ok()) << h.error();
      // Rows lie apart, with NaN between them and behind the last.
      PageView page;
      page.begin = 640, page.tokens = c.tokens;
      page.exact_k_stride = c.dk + 8, page.exact_v_stride = c.dv + 24;
      std::vector<Half> k(static_cast<size_t>(c.tokens * page.exact_k_stride), Half{0x7e00});
      std::vector<Half> v(static_cast<size_t>(c.tokens * page.exact_v_stride), Half{0x7e00});
      const auto numbers = NormalFloats(int64_t{c.tokens} * (c.dk + c.dv), 3, 1.0f);
      for (int t = 0; t < c.tokens; ++t) {
        const float* const from = numbers.data() + t * (c.dk + c.dv);
        for (int i = 0; i < c.dk; ++i) k[t * page.exact_k_stride + i] = FloatToHalf(from[i]);
        for (int i = 0; i < c.dv; ++i) v[t * page.exact_v_stride + i] = FloatToHalf(from[c.dk + i]);
      }
      page.exact_k = k.data(), page.exact_v = v.data();
      AttendArgs args;
      args.codec = &h.codec();
      args.block_tokens = c.block;
      args.rope = &h.rope();
      args.dk = c.dk, args.dv = c.dv;
      args.pages = {&page, 1};
      for (int64_t rows : {1, 3, 6, 7, 30}) {
        ForEachSimdTarget([&](int64_t) {
          const Rows some = MakeRows(rows, c.dk, c.dv, page.begin, page.begin + c.tokens + 3);
          ASSERT_TRUE(SameBits(Attend(args, some), AttendPlainly(args, page, some)))
              << rows << " rows";
        });
      }
    }
  }
}

}  // namespace
}  // namespace kvring
