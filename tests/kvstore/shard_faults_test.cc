// SPDX-License-Identifier: Apache-2.0
// What a shard refuses, what it counts, and offsets beyond 32 bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kvstore/codec_subjects.h"
#include "tests/kvstore/shard_cluster.h"
#include "tests/support/mock_codec.h"

namespace kvring {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr VisibilityRule kCells{Visibility::kExactCell, 256};

const Subject& Named(const std::string& name) { return NamedSubject(name); }

std::unique_ptr<SequenceShard> OneRank(const Subject& subject, PagePool& pool, const ShardMap& map,
                                       int rank = 0, const VisibilityRule& rule = kCells) {
  auto shard = SequenceShard::Create(
      {subject.codec, subject.shape, subject.RopePointers(), rule, &pool, rank}, map);
  EXPECT_TRUE(shard.ok()) << shard.status();
  return *std::move(shard);
}

absl::Status AppendRowsOf(SequenceShard& shard, int layer, const std::vector<int64_t>& positions,
                          const TestRows& rows) {
  return shard.Append(layer, {positions, rows.k.data(), rows.v.data(), rows.q.data()});
}

// F05: what is not finite is named and not stored.
TEST(ShardFaults, NotFiniteIsRefusedBeforeAnythingIsStored) {
  const Subject& subject = Named("prefix-sinks");
  const ShardMap map = *ShardMap::Create(1, 16, 64, 0);
  const std::vector<int64_t> positions{0, 1, 2};
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {std::nanf(""), inf, -inf}) {
    for (int which = 0; which < 3; ++which) {
      PagePool pool(1 << 24);
      auto shard = OneRank(subject, pool, map);
      TestRows rows = MakeTestRows(subject.shape, 1, positions);
      std::vector<float>& hit = which == 0 ? rows.k : which == 1 ? rows.v : rows.q;
      const size_t row = hit.size() / 3;
      const int heads = which == 2 ? subject.shape.query_heads : subject.shape.kv_heads;
      hit[row * 2 + row / heads] = bad;  // token 2, head 1
      const absl::Status status = AppendRowsOf(*shard, 1, positions, rows);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr("layer 1, head 1, token 2"));
      EXPECT_EQ(shard->bytes(), 0);
      EXPECT_EQ(pool.bytes_in_use(), 0);
      EXPECT_EQ(shard->length(), 0);
    }
  }
}

TEST(ShardFaults, NumbersBeyondFp16AreClampedAndCounted) {
  const Subject& subject = Named("page-sinks-pre");  // keys are stored as they come
  const ShardMap map = *ShardMap::Create(1, 16, 64, 0);
  PagePool pool(1 << 24);
  auto shard = OneRank(subject, pool, map);
  TestRows rows = MakeTestRows(subject.shape, 0, {0});
  rows.k[3] = 1e6f;
  rows.k[4] = -1e30f;
  rows.k[5] = 65504.0f;
  rows.v[0] = 7e4f;  // the mock's value domain is -v
  ASSERT_TRUE(AppendRowsOf(*shard, 0, {0}, rows).ok());
  EXPECT_EQ(shard->counters().clamped, 3);
  std::vector<PageView> pages;
  shard->Pages(0, 0, 0, pages);
  ASSERT_EQ(pages.size(), 1u);
  EXPECT_EQ(HalfToFloat(pages[0].exact_k[3]), 65504.0f);
  EXPECT_EQ(HalfToFloat(pages[0].exact_k[4]), -65504.0f);
  EXPECT_EQ(HalfToFloat(pages[0].exact_k[5]), 65504.0f);
  EXPECT_EQ(HalfToFloat(pages[0].exact_v[0]), -65504.0f);
  EXPECT_EQ(HalfToFloat(pages[0].sink_k[3]), 65504.0f);
}

// Rows are kept after RoPE at their true position, values in the codec's domain.
TEST(ShardFaults, ExactRowsAreInTheCodecsDomains) {
  const Subject& subject = Named("token-sinks");
  const KvShape& shape = subject.shape;
  PagePool pool(1 << 24);
  const ShardMap map = *ShardMap::Create(1, 1, 64, 0);
  auto shard = OneRank(subject, pool, map);
  std::vector<int64_t> positions(130);
  for (int64_t t = 0; t < 130; ++t) positions[t] = t;
  TestRows rows = MakeTestRows(shape, 1, positions);
  ASSERT_TRUE(AppendRowsOf(*shard, 1, positions, rows).ok());
  ASSERT_TRUE(shard->EncodeReady(1, 130).ok());
  for (int head = 0; head < shape.kv_heads; ++head) {
    std::vector<PageView> pages;
    shard->Pages(1, head, 0, pages);
    ASSERT_EQ(pages.size(), 3u);
    EXPECT_EQ(pages[2].tokens, 2);
    EXPECT_EQ(pages[0].sinks, 4);
    EXPECT_EQ(pages[1].sink_k, nullptr);
    for (const int64_t t : {0, 3, 4, 63, 64, 129}) {
      const PageView& page = pages[t / 64];
      ASSERT_EQ(page.begin, t / 64 * 64);
      float* const k = rows.k.data() + (t * shape.kv_heads + head) * shape.dk;
      std::vector<float> angles(subject.rope[1].planes() * 2);
      RopeAngles(subject.rope[1], t, angles.data());
      RopeRotate(subject.rope[1], angles.data(), k);
      std::vector<float> decoded(64 * shape.dk);
      subject.codec->DecodeKeys(1, head, nullptr, page, decoded.data());
      for (int c = 0; c < shape.dk; ++c) {
        EXPECT_EQ(page.exact_k[t % 64 * page.exact_k_stride + c], FloatToHalf(k[c]));
        EXPECT_EQ(decoded[c * 64 + t % 64], HalfToFloat(FloatToHalf(k[c])));
      }
      const float v = rows.v[(t * shape.kv_heads + head) * shape.dv];
      EXPECT_EQ(page.exact_v[t % 64 * page.exact_v_stride], FloatToHalf(-v));
    }
  }
}

TEST(ShardFaults, TokensOutOfTurnAreRefused) {
  const Subject& subject = Named("token");
  const ShardMap map = *ShardMap::Create(2, 2, 64, 0);
  PagePool pool(1 << 24);
  auto shard = OneRank(subject, pool, map);
  const auto append = [&](const std::vector<int64_t>& positions) {
    return AppendRowsOf(*shard, 0, positions, MakeTestRows(subject.shape, 0, positions));
  };
  EXPECT_FALSE(append({64}).ok()) << "of another rank";
  EXPECT_FALSE(append({1}).ok()) << "token 0 is missing";
  ASSERT_TRUE(append({0, 1}).ok());
  EXPECT_FALSE(append({1}).ok()) << "twice";
  EXPECT_FALSE(append({2, 4}).ok()) << "a gap";
  EXPECT_FALSE(append({-1}).ok());
  EXPECT_TRUE(append({}).ok()) << "nothing is something that every rank may have";
  EXPECT_TRUE(append({2}).ok());
  EXPECT_FALSE(shard->Append(2, {std::vector<int64_t>{3}}).ok()) << "no such layer";
}

TEST(ShardFaults, CreateRefusesWhatDoesNotFit) {
  const Subject& subject = Named("token");
  const ShardMap map = *ShardMap::Create(2, 16, 64, 0);
  PagePool pool(1 << 20);
  SequenceShardOptions good{subject.codec, subject.shape, subject.RopePointers(), kCells, &pool, 0};
  ASSERT_TRUE(SequenceShard::Create(good, map).ok());
  const auto refused = [&](auto change) {
    SequenceShardOptions options = good;
    change(options);
    return SequenceShard::Create(options, map).status().code() ==
           absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](auto& o) { o.codec = nullptr; }));
  EXPECT_TRUE(refused([](auto& o) { o.pool = nullptr; }));
  EXPECT_TRUE(refused([](auto& o) { o.rank = 2; }));
  EXPECT_TRUE(refused([](auto& o) { o.rule.cell = 100; }));
  EXPECT_TRUE(refused([](auto& o) { o.shape.block_tokens = 32; }));
  EXPECT_TRUE(refused([](auto& o) { o.shape.query_heads = 3; }));
  EXPECT_TRUE(refused([](auto& o) { o.rope.pop_back(); }));
}

TEST(ShardFaults, StatisticsNeedQueriesAndFreezeNeedsThePrefix) {
  const Subject& subject = Named("prefix-sinks");
  const ShardMap map = *ShardMap::Create(1, 1, 64, 0);
  PagePool pool(1 << 24);
  auto shard = OneRank(subject, pool, map);
  TestRows rows = MakeTestRows(subject.shape, 0, {0});
  const std::vector<int64_t> first{0};
  EXPECT_FALSE(shard->Append(0, {first, rows.k.data(), rows.v.data(), nullptr}).ok());
  ASSERT_TRUE(AppendRowsOf(*shard, 0, first, rows).ok());
  EXPECT_NE(shard->BlockSums(0, 0)[0], 0.0f);
  EXPECT_EQ(shard->BlockSums(0, 1)[0], 0.0f) << "not seen";
  std::vector<float> sums(2 * subject.shape.kv_heads * subject.codec->SumFloats());
  EXPECT_EQ(shard->Freeze(0, sums.data()).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(shard->State(0, 0), nullptr);
}

// A full pool refuses the step and holds no more than before; with room again the result is the same.
TEST(ShardFaults, FullPoolLeavesTheShardAsItWas) {
  for (const char* name : {"token-sinks", "lossless", "prefix-sinks"}) {
    const Subject& subject = Named(name);
    const ShardMap map = *ShardMap::Create(1, 4, 64, 0);
    const int64_t room = KvBytes(*subject.codec, subject.shape, map, 0, 100, kCells);
    PagePool pool(room + 64 * 70);
    auto shard = OneRank(subject, pool, map);
    std::vector<int64_t> early(100), late(400);
    for (int64_t t = 0; t < 100; ++t) early[t] = t;
    for (int64_t t = 0; t < 400; ++t) late[t] = 100 + t;
    for (int layer = 0; layer < 2; ++layer) {
      ASSERT_TRUE(
          AppendRowsOf(*shard, layer, early, MakeTestRows(subject.shape, layer, early)).ok());
    }
    const int64_t before = shard->bytes();
    const absl::Status status = AppendRowsOf(*shard, 0, late, MakeTestRows(subject.shape, 0, late));
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("limit"));
    EXPECT_EQ(shard->bytes(), before);
    EXPECT_EQ(pool.bytes_in_use(), before);
    std::vector<PageView> pages;
    for (int v = 0; v < 4; ++v) shard->Pages(0, 0, v, pages);
    EXPECT_EQ(pages.size(), 2u);
    const std::vector<int64_t> next{100};
    EXPECT_TRUE(AppendRowsOf(*shard, 0, next, MakeTestRows(subject.shape, 0, next)).ok());
  }
}

TEST(ShardFaults, RefusedCutNamesLengthsThatWork) {
  const Subject& subject = Named("token");
  ShardCluster cluster(subject, 3, kCells);
  ASSERT_TRUE(cluster.Run(700, 100).ok());
  const absl::Status status = cluster.Truncate(300);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("lengths that work: 256 and 512"));
  EXPECT_EQ(cluster.Truncate(701).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cluster.Truncate(-1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(cluster.Truncate(512).ok());
  EXPECT_TRUE(cluster.Truncate(0).ok());
  EXPECT_THAT(cluster.CheckBytes(), IsEmpty());
  EXPECT_EQ(cluster.pool(0).bytes_in_use(), 0);
}

// A cut inside the prefix: possible while exact rows exist, then the statistics are those of a sequence never longer.
TEST(ShardFaults, CutBelowThePrefixUnfreezes) {
  const Subject& subject = Named("prefix-sinks");
  ShardCluster cluster(subject, 2, kCells);
  ASSERT_TRUE(cluster.Step(200).ok());
  EXPECT_TRUE(cluster.shard(0).frozen(0));
  ASSERT_TRUE(cluster.Truncate(100).ok());
  EXPECT_FALSE(cluster.shard(0).frozen(0));
  ShardCluster fresh(subject, 2, kCells);
  ASSERT_TRUE(fresh.Step(100).ok());
  EXPECT_TRUE(cluster.Read() == fresh.Read());
  for (int block = 0; block < 2; ++block) {
    const int home = cluster.map().Home(block * 64);
    for (int i = 0; i < subject.codec->SumFloats() * 2; ++i) {
      ASSERT_EQ(cluster.shard(home).BlockSums(1, block)[i],
                fresh.shard(home).BlockSums(1, block)[i]);
    }
  }
  ShardCluster packed(subject, 2, {Visibility::kPacked, 256});
  ASSERT_TRUE(packed.Step(200).ok());
  EXPECT_EQ(packed.Truncate(100).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(packed.Truncate(130).ok()) << "codes stay, the state too";
}

// F03: one layer, 8 KV heads, head_dim 128, 2 bits. In a layout of 4096 ranks this rank has every 4096th block, so few
// blocks reach token 2,097,152, where a counter of elements (1024 a token) passes 2^31, and far beyond 2^40 bytes.
TEST(ShardFaults, OffsetsBeyond32Bits) {
  Subject subject;
  subject.shape = {.layers = 1, .query_heads = 8, .kv_heads = 8, .dk = 128, .dv = 128};
  subject.rope = MakeTestRope(subject.shape);
  for (const char* name : {"int2", "rot4", "f16"}) {
    const CodecRow* row = FindCodec(name);
    ASSERT_NE(row, nullptr);
    subject.name = name;
    subject.codec = row->make(*row, {subject.shape, subject.RopePointers(), {}, nullptr}).codec;
    ASSERT_NE(subject.codec, nullptr) << name;
    const ShardMap map = *ShardMap::Create(4096, 4096, 64, 0);
    PagePool pool(int64_t{1} << 30);
    auto shard = OneRank(subject, pool, map, 0, {Visibility::kPacked, 256});
    auto near =
        OneRank(subject, pool, *ShardMap::Create(1, 1, 64, 0), 0, {Visibility::kPacked, 256});
    // Another rank's blocks of the prefix are not here; any finite sums freeze.
    const std::vector<float> sums(2 * 8 * std::max<int64_t>(1, subject.codec->SumFloats()), 1.0f);
    std::vector<int64_t> positions(64);
    int64_t begin = 0;
    for (int64_t cycle = 0; begin < 2'097'152; ++cycle) {
      begin = cycle * 4096 * 64;
      for (int64_t t = 0; t < 64; ++t) positions[t] = begin + t;
      const TestRows rows = MakeTestRows(subject.shape, 0, positions);
      ASSERT_TRUE(AppendRowsOf(*shard, 0, positions, rows).ok());
      if (cycle == 0 && shard->prefix_blocks() > 0) {
        ASSERT_TRUE(shard->Freeze(0, sums.data()).ok());
      }
      ASSERT_TRUE(shard->EncodeReady(0, begin + 64).ok());
      shard->CloseCells(0, begin + 64);
    }
    ASSERT_EQ(begin, 2'097'152);
    const int slot = map.SlotOfRank(0);
    EXPECT_EQ(shard->bytes(), KvBytes(*subject.codec, subject.shape, map, slot, begin + 64,
                                      {Visibility::kPacked, 256}));
    std::vector<PageView> pages;
    shard->Pages(0, 7, 0, pages);
    ASSERT_EQ(pages.size(), 9u);
    // Values do not know their position: as first block of a sequence without far tokens they decode to the same numbers.
    const TestRows rows = MakeTestRows(subject.shape, 0, positions);
    std::vector<int64_t> first(64);
    for (int64_t t = 0; t < 64; ++t) first[t] = t;
    std::vector<float> far_v(64 * 128), near_v(64 * 128);
    EXPECT_EQ(pages.back().begin, 2'097'152);
    subject.codec->DecodeValues(0, 7, shard->State(0, 7), pages.back(), far_v.data());
    if (shard->prefix_blocks() > 0) continue;  // its one block alone would not freeze `near`
    ASSERT_TRUE(AppendRowsOf(*near, 0, first, rows).ok());
    ASSERT_TRUE(near->EncodeReady(0, 64).ok());
    std::vector<PageView> near_pages;
    near->Pages(0, 7, 0, near_pages);
    subject.codec->DecodeValues(0, 7, nullptr, near_pages[0], near_v.data());
    const int first_compared = subject.codec->traits().sink_tokens * 128;
    EXPECT_TRUE(
        std::equal(far_v.begin() + first_compared, far_v.end(), near_v.begin() + first_compared))
        << name;
  }
}

// Bytes of a long context are arithmetic, whatever the length.
TEST(KvBytes, LongContexts) {
  const Subject& subject = Named("rot4");
  const ShardMap map = *ShardMap::Create(8, 64, 64, 0);
  const VisibilityRule rule{};
  int64_t total = 0;
  for (int slot = 0; slot < 8; ++slot) {
    total += KvBytes(*subject.codec, subject.shape, map, slot, int64_t{1} << 33, rule);
  }
  const double bits = 8.0 * static_cast<double>(total) /
                      (static_cast<double>(int64_t{1} << 33) * 2 * 2 * (64 + 64));
  EXPECT_NEAR(bits, BitsPerElement(*subject.codec, subject.shape), 1e-4);
  EXPECT_DOUBLE_EQ(BitsPerElement(*subject.codec, subject.shape), 4.125);
  EXPECT_EQ(
      KvBytesF16({.layers = 32, .query_heads = 32, .kv_heads = 8, .dk = 128, .dv = 128}, 1'048'576),
      int64_t{128} << 30);  // F21
}

TEST(KvBytes, FollowsTheShardInLongRuns) {
  for (const char* name : {"prefix-sinks", "page-sinks-pre", "prefix-page"}) {
    for (const VisibilityRule& rule : AllRules()) {
      ShardCluster cluster(Named(name), 4, rule);
      while (cluster.length() < 6000) {
        ASSERT_TRUE(cluster.Step(cluster.length() + 511).ok());
        ASSERT_THAT(cluster.CheckBytes(), IsEmpty());
      }
    }
  }
}

// KvBytes finds a border by halving; here every block is asked. Also: once packed, always packed.
TEST(KvBytes, VisibilityHasOneBorder) {
  for (const Subject& subject : MockSubjects()) {
    const CodecTraits& traits = subject.codec->traits();
    for (const VisibilityRule& rule : AllRules()) {
      for (int64_t query = 0; query < 900; query += 7) {
        bool exact_before = false;
        for (int64_t begin = 0; begin <= query; begin += 64) {
          const bool exact = BlockIsExact(rule, traits, 64, query, begin, query);
          EXPECT_TRUE(exact || !exact_before) << "packed after exact";
          exact_before = exact;
          if (exact) continue;
          EXPECT_FALSE(BlockIsExact(rule, traits, 64, query + 1, begin, query + 1));
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvring
