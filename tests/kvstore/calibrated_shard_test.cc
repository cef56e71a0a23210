// SPDX-License-Identifier: Apache-2.0
// What calibrated codecs ask of a shard: drift counted by layer, pages that grow, cuts inside a page, sinks, and how much
// stays unquantized.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "kernels/parallel.h"
#include "kvstore/codec_spec.h"
#include "kvstore/kv_bytes.h"
#include "tests/kvstore/codec_subjects.h"
#include "tests/kvstore/shard_cluster.h"
#include "tests/support/nuq_tables.h"
#include "tests/support/tc_tables.h"

namespace kvring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr VisibilityRule kCells{Visibility::kExactCell, 256};
constexpr VisibilityRule kPackedOnly{Visibility::kPacked, 256};
constexpr int kBlock = 64;

std::vector<std::string> CalibratedNames() {
  std::vector<std::string> names;
  for (const Subject& subject : AllSubjects()) {
    if (subject.name.rfind("nuq", 0) == 0) names.push_back(subject.name);
  }
  return names;
}

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> positions(end - begin);
  std::iota(positions.begin(), positions.end(), begin);
  return positions;
}

std::vector<PageView> AllPages(ShardCluster& cluster, int layer, int head) {
  std::vector<PageView> pages;
  for (int v = 0; v < kTestShards; ++v) {
    for (int rank = 0; rank < cluster.map().ranks(); ++rank) {
      cluster.shard(rank).Pages(layer, head, v, pages);
    }
  }
  return pages;
}

// Values of one packed page, [64][dv].
std::vector<float> Values(const Subject& subject, int layer, int head, const PageView& page) {
  std::vector<float> v(kBlock * subject.shape.dv);
  subject.codec->DecodeValues(layer, head, nullptr, page, v.data());
  return v;
}
std::vector<float> Keys(const Subject& subject, int layer, int head, const PageView& page) {
  std::vector<float> kt(kBlock * subject.shape.dk);
  subject.codec->DecodeKeys(layer, head, nullptr, page, kt.data());
  return kt;
}

// Every byte of every tile that can be read packed.
std::string Tiles(const Subject& subject, ShardCluster& cluster) {
  std::string bytes;
  for (int layer = 0; layer < subject.shape.layers; ++layer) {
    for (int head = 0; head < subject.shape.kv_heads; ++head) {
      for (const PageView& page : AllPages(cluster, layer, head)) {
        if (page.packed == nullptr) continue;
        for (const auto& tile :
             {Keys(subject, layer, head, page), Values(subject, layer, head, page)})
          bytes.append(reinterpret_cast<const char*>(tile.data()), tile.size() * sizeof(float));
      }
    }
  }
  return bytes;
}

class Calibrated : public ::testing::TestWithParam<std::string> {
 protected:
  const Subject& subject() const { return NamedSubject(GetParam()); }
  void SetUp() override { SetThreads(1); }
};

INSTANTIATE_TEST_SUITE_P(Forms, Calibrated, ::testing::ValuesIn(CalibratedNames()),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

// The shard counts what the codec says about each token, once, whatever the chunks; layers add up.
TEST_P(Calibrated, DriftIsCountedByLayerForEveryChunking) {
  std::vector<KvCounters> expected;
  const KvShape& shape = subject().shape;
  for (int layer = 0; layer < shape.layers; ++layer) {
    KvCounters counted;
    for (int64_t begin = 0; begin < 300; begin += kBlock) {
      const auto positions = Range(begin, std::min<int64_t>(300, begin + kBlock));
      TestRows rows = MakeTestRows(shape, layer, positions);
      for (float& x : rows.k) x = HalfToFloat(FloatToHalf(x));
      for (float& x : rows.v) x = HalfToFloat(FloatToHalf(x));
      std::vector<std::vector<uint8_t>> pages(shape.kv_heads);
      std::vector<uint8_t*> pointers;
      for (int head = 0; head < shape.kv_heads; ++head) {
        pages[head].resize(1 << 20);  // room for any growth
        pointers.push_back(pages[head].data());
      }
      const int sinks = begin == 0 ? subject().codec->traits().sink_tokens : 0;
      EncodeArgs args;
      args.layer = layer;
      args.block_begin = begin;
      args.first = sinks;
      args.count = static_cast<int>(positions.size()) - sinks;
      args.k = rows.k.data() + sinks * shape.kv_heads * shape.dk;
      args.v = rows.v.data() + sinks * shape.kv_heads * shape.dv;
      args.pages = pointers.data();
      args.saturated = &counted.saturated;
      args.overflow = &counted.overflow;
      ASSERT_FALSE(subject().codec->Encode(args));
    }
    expected.push_back(counted);
  }
  for (const int64_t chunk : {300, 128, 7, 1}) {
    ShardCluster cluster(subject(), 1, kCells);
    ASSERT_TRUE(cluster.Run(300, chunk).ok());
    const SequenceShard& shard = cluster.shard(0);
    ASSERT_EQ(shard.layer_counters().size(), 2u);
    for (int layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(shard.layer_counters()[layer].saturated, expected[layer].saturated) << chunk;
      EXPECT_EQ(shard.layer_counters()[layer].overflow, expected[layer].overflow) << chunk;
      EXPECT_EQ(shard.layer_counters()[layer].clamped, 0);
    }
    EXPECT_EQ(shard.counters().saturated, expected[0].saturated + expected[1].saturated);
    EXPECT_EQ(shard.counters().overflow, expected[0].overflow + expected[1].overflow);
    EXPECT_LE(shard.counters().overflow, shard.counters().saturated);
  }
  if (GetParam() == "nuq2-0.5%") {  // its tables are too narrow for these rows
    EXPECT_GT(expected[0].overflow, 0);
    EXPECT_GT(expected[1].overflow, 0);
  }
  if (subject().codec->traits().growing_page) {
    EXPECT_EQ(expected[0].overflow, 0);
  }
}

// Codes, scales and outliers of dropped tokens do not come back: at once, and after other tokens took their place.
TEST_P(Calibrated, CutsInsidePagesForgetWhatWasDropped) {
  for (const int64_t cut : {10, 64, 65, 100, 190, 191, 193, 255}) {
    ShardCluster cluster(subject(), 2, kPackedOnly);
    cluster.SetBranch(0);
    ASSERT_TRUE(cluster.Run(256, 50).ok());
    ASSERT_TRUE(cluster.Truncate(cut).ok());
    ShardCluster fresh(subject(), 2, kPackedOnly);
    ASSERT_TRUE(fresh.Run(cut, 50).ok());
    ASSERT_EQ(Tiles(subject(), cluster), Tiles(subject(), fresh)) << "cut to " << cut;
    cluster.SetBranch(1);  // other rows than before the cut
    fresh.SetBranch(1);
    ASSERT_TRUE(cluster.Run(cut + 1, 1).ok());
    ASSERT_TRUE(fresh.Run(cut + 1, 1).ok());
    ASSERT_EQ(Tiles(subject(), cluster), Tiles(subject(), fresh)) << "one more than " << cut;
    ASSERT_TRUE(cluster.Run(320, 33).ok());
    ASSERT_TRUE(fresh.Run(320, 320).ok());
    EXPECT_TRUE(cluster.Read() == fresh.Read()) << "cut to " << cut;
    EXPECT_THAT(cluster.CheckBytes(), IsEmpty());
  }
}

// P7 where outliers have room: two tokens of a block changed places, all others decode to the same bits, and the values of
// the two are those of the other. Keys are read rotated, so the two differ there.
TEST_P(Calibrated, OtherTokensDoNotMatter) {
  if (GetParam() == "nuq2-0.5%") return;  // its slots are full: who comes first has one
  const KvShape& shape = subject().shape;
  constexpr int kA = 20, kB = 41;
  const auto positions = Range(0, kBlock);
  PagePool pool(1 << 26);
  const ShardMap map = *ShardMap::Create(1, 1, kBlock, 0);
  std::vector<std::unique_ptr<SequenceShard>> shards;
  for (const bool swapped : {false, true}) {
    shards.push_back(*SequenceShard::Create(
        {subject().codec, shape, subject().RopePointers(), kPackedOnly, &pool, 0}, map));
    TestRows rows = MakeTestRows(shape, 0, positions);
    if (swapped) {
      for (auto* x : {&rows.k, &rows.v}) {
        const int64_t row = static_cast<int64_t>(x->size()) / kBlock;
        std::swap_ranges(x->begin() + kA * row, x->begin() + (kA + 1) * row, x->begin() + kB * row);
      }
    }
    ASSERT_TRUE(
        shards.back()->Append(0, {positions, rows.k.data(), rows.v.data(), rows.q.data()}).ok());
    ASSERT_TRUE(shards.back()->EncodeReady(0, kBlock).ok());
    ASSERT_EQ(shards.back()->counters().overflow, 0) << "not what this test is about";
  }
  for (int head = 0; head < shape.kv_heads; ++head) {
    std::vector<PageView> pages;
    for (const auto& shard : shards) shard->Pages(0, head, 0, pages);
    ASSERT_EQ(pages.size(), 2u);
    const auto k0 = Keys(subject(), 0, head, pages[0]), k1 = Keys(subject(), 0, head, pages[1]);
    const auto v0 = Values(subject(), 0, head, pages[0]), v1 = Values(subject(), 0, head, pages[1]);
    for (int t = 0; t < kBlock; ++t) {
      const int from = t == kA ? kB : t == kB ? kA : t;
      EXPECT_TRUE(
          std::equal(&v1[t * shape.dv], &v1[t * shape.dv] + shape.dv, &v0[from * shape.dv]));
      for (int c = 0; c < shape.dk && from == t; ++c)
        ASSERT_EQ(k1[c * kBlock + t], k0[c * kBlock + t]) << "token " << t << " channel " << c;
    }
  }
}

// F16: after 500 steps of one token each, at most the open cell and the sinks are unquantized, and what is reported is held.
TEST(UnquantizedTokens, AtMostTheOpenCellAndTheSinks) {
  SetThreads(1);
  for (const Subject& subject : AllSubjects()) {
    if (subject.is_mock || subject.codec->traits().lossless) continue;
    for (const VisibilityRule& rule : {kCells, kPackedOnly}) {
      ShardCluster cluster(subject, 2, rule);
      ASSERT_TRUE(cluster.Step(140).ok());
      ASSERT_TRUE(cluster.Run(640, 1).ok());
      // Cells: tokens 512..639. Packed: none, or those of a block whose page-wide parameters are open (640 is a block's end).
      const int64_t open = rule.kind == Visibility::kExactCell ? 640 - 512 : 0;
      for (int head = 0; head < subject.shape.kv_heads; ++head) {
        int64_t exact = 0, packed = 0, sinks = 0;
        for (const PageView& page : AllPages(cluster, 1, head)) {
          exact += page.exact_k != nullptr ? page.tokens : 0;
          packed += page.packed != nullptr ? page.tokens : 0;
          sinks += page.sinks;
          EXPECT_EQ(page.packed != nullptr, page.shared != nullptr);
        }
        EXPECT_EQ(exact, open) << subject.name << " " << RuleName(rule);
        EXPECT_EQ(packed, 640) << subject.name;
        EXPECT_EQ(sinks, subject.codec->traits().sink_tokens) << subject.name;
      }
      EXPECT_THAT(cluster.CheckBytes(), IsEmpty());
    }
  }
}

// F22, the cache's half: with a first token of large keys and channels with a bias, the first tokens are read as they came
// (rounded to fp16), through decode, cut and fork, and their bytes are counted.
TEST_P(Calibrated, FirstTokensStayExact) {
  const KvShape& shape = subject().shape;
  const int sinks = subject().codec->traits().sink_tokens;
  ASSERT_GE(sinks, 1);
  PagePool pool(1 << 26);
  const ShardMap map = *ShardMap::Create(1, 1, kBlock, 0);
  auto shard = *SequenceShard::Create(
      {subject().codec, shape, subject().RopePointers(), kPackedOnly, &pool, 0}, map);
  const auto positions = Range(0, 1024);
  const int64_t k_row = shape.kv_heads * shape.dk, v_row = shape.kv_heads * shape.dv;
  TestRows rows;
  for (int layer = 0; layer < 2; ++layer) {
    rows = MakeTestRows(shape, layer, positions);
    for (int64_t c = 0; c < k_row; ++c) rows.k[c] *= 30.0f;
    for (int64_t t = 0; t < 1024; ++t) {
      for (const int c : {5, 17, 100}) rows.k[t * k_row + c] += 40.0f;
    }
    ASSERT_TRUE(
        shard->Append(layer, {positions, rows.k.data(), rows.v.data(), rows.q.data()}).ok());
    ASSERT_TRUE(shard->EncodeReady(layer, 1024).ok());
    shard->CloseCells(layer, 1024);
  }
  const auto check = [&](const SequenceShard& of) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      std::vector<PageView> pages;
      of.Pages(1, head, 0, pages);
      ASSERT_NE(pages[0].packed, nullptr);
      ASSERT_EQ(pages[0].sinks, sinks);
      const auto v = Values(subject(), 1, head, pages[0]);
      for (int t = 0; t < sinks; ++t) {
        for (int c = 0; c < shape.dk; ++c) {
          EXPECT_EQ(pages[0].sink_k[t * pages[0].sink_k_stride + c],
                    FloatToHalf(rows.k[t * k_row + head * shape.dk + c]));
        }
        for (int c = 0; c < shape.dv; ++c) {
          EXPECT_EQ(v[t * shape.dv + c],
                    HalfToFloat(FloatToHalf(rows.v[t * v_row + head * shape.dv + c])));
        }
      }
    }
  };
  check(*shard);
  const auto fork = shard->Fork(700);
  ASSERT_TRUE(fork.ok()) << fork.status();
  check(**fork);
  ASSERT_TRUE(shard->Truncate(30).ok());
  check(*shard);
  EXPECT_EQ(shard->bytes() - shard->page_bytes(),
            2 * PagePool::SlotBytes(sinks * (k_row + v_row) * 2))
      << "nothing but sinks is exact";
}

// A growing page holds what its tokens need and no more than its slot's rounding; planned space is never given back.
TEST(GrowingPages, BytesFollowTheEntries) {
  SetThreads(1);
  const Subject& subject = NamedSubject("nuq4-1%:exact");
  ASSERT_TRUE(subject.codec->traits().growing_page);
  ShardCluster cluster(subject, 1, kPackedOnly);
  ASSERT_TRUE(cluster.Run(640, 9).ok());
  int64_t expected = 0;
  bool grown = false;
  for (int layer = 0; layer < 2; ++layer) {
    const int64_t plain = subject.codec->PageSize(layer, 1).total();  // as head 0 without its lists
    const int64_t planned = subject.codec->PageSize(layer, 0).total();
    for (const PageView& page : AllPages(cluster, layer, 0)) {
      // Lists: counts of K and of V of every slot, 16 bits each, then entries of 32 bits.
      std::vector<uint16_t> counts(2 * kBlock);
      std::memcpy(counts.data(), page.shared + plain, counts.size() * sizeof(uint16_t));
      const int64_t entries = std::accumulate(counts.begin(), counts.end(), int64_t{0});
      EXPECT_GT(entries, 0);
      const int64_t needed = plain + 4 * (kBlock + entries);
      grown = grown || needed > planned;
      expected += PagePool::SlotBytes(std::max(planned, needed)) + PagePool::SlotBytes(plain);
    }
  }
  EXPECT_TRUE(grown) << "the test rows reach beyond what is planned";
  EXPECT_EQ(cluster.shard(0).page_bytes(), expected);
  EXPECT_THAT(cluster.CheckBytes(), IsEmpty());
}

TEST(GrowingPages, FullPoolIsReportedWithLayerAndBlock) {
  SetThreads(1);
  const Subject& subject = NamedSubject("nuq4-1%:exact");
  const KvShape& shape = subject.shape;
  const ShardMap map = *ShardMap::Create(1, 1, kBlock, 0);
  // Values that are each beyond the others by far: as many outliers as tokens allow, and keys all beyond their thresholds.
  const auto positions = Range(0, kBlock);
  TestRows rows = MakeTestRows(shape, 0, positions);
  for (float& x : rows.k) x *= 1000.0f;
  const int64_t room = KvBytes(*subject.codec, shape, map, 0, kBlock, kCells) / 2;  // one layer
  PagePool pool(room + 1024);
  auto shard =
      *SequenceShard::Create({subject.codec, shape, subject.RopePointers(), kCells, &pool, 0}, map);
  ASSERT_TRUE(shard->Append(0, {positions, rows.k.data(), rows.v.data(), rows.q.data()}).ok());
  const absl::Status status = shard->EncodeReady(0, kBlock);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("layer 0, block 0"), HasSubstr("grows")));
  EXPECT_EQ(pool.bytes_in_use(), shard->bytes());
  std::vector<PageView> pages;
  shard->Pages(0, 0, 0, pages);
  ASSERT_EQ(pages.size(), 1u);
  EXPECT_EQ(pages[0].packed, nullptr) << "not encoded";
  shard = nullptr;
  EXPECT_EQ(pool.bytes_in_use(), 0);
}

// Every row and option, by the name that people type.
TEST(CodecSpec, TransformCodecsByNameAndContext) {
  const KvShape shape{.layers = 2, .query_heads = 4, .kv_heads = 2, .dk = 64, .dv = 64};
  const std::vector<RopeTable> rope = MakeTestRope(shape);
  const std::vector<const RopeTable*> pointers{&rope[0], &rope[1]};
  const auto tables = TestTcTables(shape);
  for (const char* name : {"tc4", "tc2.5", "tc1.5", "tc@2.25", "tc2:adapt"}) {
    EXPECT_TRUE(NeedsCalibration(name));
    const auto codec = MakeCodec(name, shape, pointers, tables);
    ASSERT_TRUE(codec.ok()) << codec.status();
    EXPECT_EQ((*codec)->traits().id, name);
    EXPECT_EQ((*codec)->traits().tables_hash, tables->hash);
    const absl::Status without = MakeCodec(name, shape, pointers).status();
    EXPECT_EQ(without.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(without.message()),
                AllOf(HasSubstr("tc"), HasSubstr("kvring calibrate"), HasSubstr("--calibration")));
  }
  EXPECT_EQ(BitsPerElement(**MakeCodec("tc2.5", shape, pointers, tables), shape), 2.625);
  EXPECT_THAT(std::string(MakeCodec("tc7", shape, pointers).status().message()),
              AllOf(HasSubstr("tc7"), HasSubstr("tc@BITS")));
  EXPECT_EQ(SpecForContext("tc3", 16383), "tc3");
  EXPECT_EQ(SpecForContext("tc3", 16384), "tc3:adapt");
  EXPECT_EQ(SpecForContext("tc@2.2", 1 << 20), "tc@2.2:adapt");
  EXPECT_EQ(SpecForContext("tc3:static", 1 << 20), "tc3:static");
  EXPECT_EQ(SpecForContext("tc3:adapt", 1 << 20), "tc3:adapt");
  EXPECT_EQ(SpecForContext("rot4", 1 << 20), "rot4");
}

TEST(CodecSpec, CalibratedCodecsByName) {
  const KvShape shape{.layers = 2, .query_heads = 4, .kv_heads = 2, .dk = 64, .dv = 64};
  const std::vector<RopeTable> rope = MakeTestRope(shape);
  const std::vector<const RopeTable*> pointers{&rope[0], &rope[1]};
  const auto tables = TestNuqTables(shape);
  int rows = 0;
  for (const CodecRow& row : AllCodecs()) {
    if (!row.calibrated) continue;
    EXPECT_TRUE(NeedsCalibration(row.name));
    if (row.rate > 0) continue;  // tc has no such forms
    ++rows;
    for (const char* form : {"", ":exact", ":token", ":paper"}) {
      const auto codec = MakeCodec(std::string(row.name) + form, shape, pointers, tables);
      ASSERT_TRUE(codec.ok()) << codec.status();
      EXPECT_EQ((*codec)->traits().id, std::string(row.name) + form);
      EXPECT_EQ((*codec)->traits().tables_hash, tables->hash);
      const bool shared = std::strlen(form) > 0;
      EXPECT_EQ((*codec)->traits().shared_page, shared) << row.name << form;
      EXPECT_GT(BitsPerElement(**codec, shape), row.bits);
    }
    const absl::Status without = MakeCodec(row.name, shape, pointers).status();
    EXPECT_EQ(without.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        std::string(without.message()),
        AllOf(HasSubstr(row.name), HasSubstr("kvring calibrate"), HasSubstr("--calibration")));
  }
  EXPECT_EQ(rows, 12);
  const auto refused = [&](const std::string& spec) {
    const absl::Status status = MakeCodec(spec, shape, pointers, tables).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << spec;
    return std::string(status.message());
  };
  EXPECT_THAT(refused("nuq3-1%:post-rope"),
              AllOf(HasSubstr("'nuq3-1%:post-rope'"), HasSubstr("it has")));
  EXPECT_THAT(refused("nuq3-2%"), HasSubstr("nuq3-1%")) << "what there is";
  EXPECT_THAT(refused("nuq3-1%:papre"), HasSubstr("papre"));
  EXPECT_FALSE(NeedsCalibration("rot4"));
}

}  // namespace
}  // namespace kvring
