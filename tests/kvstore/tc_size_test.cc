// SPDX-License-Identifier: Apache-2.0
// What tc@BITS says it takes is what is allocated, at every rate and on any number of ranks.
#include <gtest/gtest.h>

#include "kvstore/codec_spec.h"
#include "kvstore/sequence_shard.h"
#include "tests/kvstore/shard_cluster.h"
#include "tests/support/tc_tables.h"

namespace kvring {
namespace {

constexpr KvShape kPlain{.layers = 2, .query_heads = 4, .kv_heads = 2, .dk = 64, .dv = 64};
// Eigenproblems take time; pages of many heads are the plain form's to test.
constexpr KvShape kAdapt{.layers = 1, .query_heads = 2, .kv_heads = 1, .dk = 64, .dv = 64};
constexpr VisibilityRule kPackedOnly{Visibility::kPacked, 256};

struct Held {
  int64_t pages = 0, all = 0, planned = 0;  // bytes, of all ranks
};

Held HeldBytes(const Subject& subject, int ranks, int64_t length) {
  ShardCluster cluster(subject, ranks, kPackedOnly);
  EXPECT_TRUE(cluster.Step(length).ok());
  Held held;
  for (int rank = 0; rank < ranks; ++rank) {
    held.pages += cluster.shard(rank).page_bytes();
    held.all += cluster.shard(rank).bytes();
    held.planned += KvBytes(*subject.codec, subject.shape, cluster.map(),
                            cluster.map().SlotOfRank(rank), length, kPackedOnly);
  }
  return held;
}

class TcSize : public testing::TestWithParam<bool> {};  // :adapt or not
INSTANTIATE_TEST_SUITE_P(Forms, TcSize, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Adapt" : "Plain");
});

TEST_P(TcSize, StatedBitsArePageBytesAtEveryRate) {
  const KvShape& shape = GetParam() ? kAdapt : kPlain;
  const int64_t sides = 2 * shape.layers * shape.kv_heads, coefficients = 64 * sides;  // a token
  Subject subject;
  subject.shape = shape;
  subject.rope = MakeTestRope(shape);
  // Heads and layers far apart, so that their pages differ in size at every rate.
  const auto tables = TestTcTables(shape, {.uneven = 0.9f, .sides = 1.0f});
  for (int tenths = 10; tenths <= 60; ++tenths) {
    const std::string rate = std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
    subject.name = "tc@" + rate + (GetParam() ? ":adapt" : "");
    const auto codec = MakeCodec(subject.name, shape, subject.RopePointers(), tables);
    ASSERT_TRUE(codec.ok()) << codec.status();
    subject.codec = *codec;
    // Whole bits of whole classes of 8 coefficients, never more than the rate; a byte of gain for 64.
    const int64_t code_bits = coefficients * tenths / 80 * 8;
    const double bits = BitsPerElement(**codec, shape);
    EXPECT_EQ(bits, static_cast<double>(code_bits) / coefficients + 8.0 / 64) << subject.name;
    // Of the sequence, on every rank, beside the pages: a turned basis and its deviations a side, fp16.
    const int64_t state = GetParam() ? sides * (64 * 64 + 64) * int64_t{sizeof(Half)} : 0;
    EXPECT_EQ((*codec)->StateBytes() * shape.layers * shape.kv_heads, state);
    const int64_t sinks = shape.layers * PagePool::SlotBytes(4 * coefficients / shape.layers * 2);
    const int64_t length = GetParam() ? 576 : 256;  // adapt has its state with token 511
    for (const int ranks : {1, 4}) {
      const Held held = HeldBytes(subject, ranks, length);
      // A page of 64 tokens is whole lines of the pool whatever the bits: equal without a word about padding.
      EXPECT_EQ(static_cast<double>(8 * held.pages), bits * length * coefficients)
          << subject.name << " on " << ranks;
      EXPECT_EQ(held.all, held.planned) << subject.name << " on " << ranks;
      EXPECT_EQ(held.all - held.pages, sinks + ranks * state) << subject.name << " on " << ranks;
    }
  }
}

}  // namespace
}  // namespace kvring
