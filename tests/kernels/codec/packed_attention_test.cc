// SPDX-License-Identifier: Apache-2.0
// Attention by integer dot products on the packed pages of `rot`: the same bits as the plain form on every instruction set
// with fused multiply-add, whatever the company of a row; near to what the decoded numbers give.
#define HWY_WANT_AVX3_DL  // the newest x86 target is attainable here too

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "kernels/codec/lloyd_max.h"
#include "kernels/ref/codec_ref.h"
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
};

std::vector<float> Attend(const AttendArgs& args) {
  const int64_t rows = static_cast<int64_t>(args.positions.size());
  std::vector<float> storage(static_cast<size_t>(PartialFloats(rows, args.dv)), 1.0f);
  MakeEmpty(PartialAt(storage.data(), rows, args.dv));
  AttendScratch scratch;
  AttendPages(args, scratch, PartialAt(storage.data(), rows, args.dv));
  return storage;
}

std::vector<PackedCase> Cases() {
  std::vector<PackedCase> cases;
  for (const char* name : {"rot2", "rot3", "rot4", "rot8"}) {
    for (auto [dk, dv] : {std::pair{64, 64}, {128, 128}, {32, 48}, {96, 112}, {256, 64}})
      cases.push_back({.codec = {.name = name, .dk = dk, .dv = dv}});
    cases.push_back({.codec = {.name = name, .flags = {"no-mean", "no-balance"}}});
  }
  for (int group : {1, 3, 4, 5, 8, 13})
    cases.push_back({.codec = {.name = "rot4", .kv_heads = 2, .query_heads = 2 * group}});
  // Every row of a whole prompt: rows that see a sink or two, half a page, all.
  cases.push_back({.codec = {.name = "rot4"}, .length = 200, .first = 0, .count = 200});
  cases.push_back({.codec = {.name = "rot3", .pairing = RopePairing::kHalfSplit},
                   .length = 256,
                   .begin = 64 * 1'000'003,
                   .bias = 5.0f});
  return cases;
}

bool IsFused(int64_t target) {
  return target == HWY_AVX2 || target == HWY_AVX3 || target == HWY_AVX3_DL;
}

TEST(PackedAttention, HasTheBitsOfThePlainForm) {
  for (const PackedCase& c : Cases()) {
    SCOPED_TRACE(testing::Message()
                 << c.codec.name << " dk " << c.codec.dk << " dv " << c.codec.dv << " query heads "
                 << c.codec.query_heads << " begin " << c.begin);
    PackedScene scene(c);
    const AttendArgs args = scene.Args();
    ForEachSimdTarget([&](int64_t target) {
      if (!IsFused(target)) return;
      std::vector<float> want(static_cast<size_t>(PartialFloats(scene.rows(), args.dv)));
      const SoftmaxPartial partial = PartialAt(want.data(), scene.rows(), args.dv);
      MakeEmpty(partial);
      AttendPackedRef(scene.Form(), PageTurns(*args.rope, 64), args, partial);
      EXPECT_TRUE(SameBits(Attend(args), want));
    });
  }
}

}  // namespace
}  // namespace kvring
