// SPDX-License-Identifier: Apache-2.0
#include "kvstore/shard_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kvstore/codec_spec.h"
#include "runtime/base/hash.h"
#include "tests/kvstore/codec_subjects.h"
#include "tests/kvstore/shard_cluster.h"
#include "tests/support/nuq_tables.h"

namespace kvring {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr VisibilityRule kCells{Visibility::kExactCell, 256};

absl::Status Copy(ShardCluster& from, int from_ranks, ShardCluster& to, int to_ranks) {
  for (int v = 0; v < kTestShards; ++v) {
    const int64_t token = from.map().Token(v, 0);
    KVRING_ASSIGN_OR_RETURN(const auto bytes, ExportShard(from.shard(from.map().Home(token)), v));
    KVRING_RETURN_IF_ERROR(ImportShard(bytes, to.shard(to.map().Home(token))));
  }
  if (!from.shard(0).frozen(0)) return absl::OkStatus();
  KVRING_ASSIGN_OR_RETURN(const auto state, ExportState(from.shard(from_ranks - 1)));
  for (int rank = 0; rank < to_ranks; ++rank) {
    KVRING_RETURN_IF_ERROR(ImportState(state, to.shard(rank)));
  }
  return absl::OkStatus();
}

// Four ranks out, three in: content, bytes, and what follows are the same.
TEST(ShardIo, AnotherRankCountGoesOnAsIfNothingHappened) {
  for (const Subject& subject : AllSubjects()) {
    if (subject.codec->traits().shared_page) continue;
    for (const VisibilityRule& rule : AllRules()) {
      for (const int64_t length : {2, 100, 333, 1100}) {
        ShardCluster from(subject, 4, rule);
        ASSERT_TRUE(from.Run(length, 200).ok());
        ShardCluster to(subject, 3, rule);
        ASSERT_TRUE(Copy(from, 4, to, 3).ok()) << subject.name << length;
        to.AssumeLength(length);
        ASSERT_TRUE(to.Read() == from.Read()) << subject.name << " " << length;
        ASSERT_THAT(to.CheckBytes(), IsEmpty());
        ASSERT_TRUE(to.Step(length + 150).ok());
        ASSERT_TRUE(from.Step(length + 150).ok());
        ASSERT_TRUE(to.Read() == from.Read()) << subject.name << " " << length;
        ASSERT_THAT(to.CheckBytes(), IsEmpty());
      }
    }
  }
}

TEST(ShardIo, PagesThatAreReadTogetherAreNotStored) {
  for (const Subject& subject : AllSubjects()) {
    if (!subject.codec->traits().shared_page) continue;
    ShardCluster cluster(subject, 1, kCells);
    ASSERT_TRUE(cluster.Step(100).ok());
    const absl::Status status = ExportShard(cluster.shard(0), 0).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr(subject.name));
    ShardCluster to(subject, 1, kCells);
    EXPECT_EQ(ImportShard({}, to.shard(0)).code(), absl::StatusCode::kUnimplemented);
  }
}

// The same codec with other tables cannot read the pages.
TEST(ShardIo, OtherTablesAreRefusedWithBothHashes) {
  const Subject& subject = NamedSubject("nuq2-0.5%");
  ShardCluster from(subject, 1, kCells);
  ASSERT_TRUE(from.Step(300).ok());
  const auto bytes = ExportShard(from.shard(0), 0);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const std::string id = "nuq2-0.5%";
  const auto tables = TestNuqTables(subject.shape);
  std::vector<float> lower = tables->Find(id + "/k_lo")->values;
  lower[0] -= 1.0f;
  Subject other = subject;
  const auto codec = MakeCodec(id, subject.shape, subject.RopePointers(),
                               WithNuqTensors(*tables, id, {{"k_lo", lower}}));
  ASSERT_TRUE(codec.ok()) << codec.status();
  other.codec = *codec;
  ShardCluster to(other, 1, kCells);
  const absl::Status status = ImportShard(*bytes, to.shard(0));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("calibration"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(HashHex(subject.codec->traits().tables_hash)));
  EXPECT_THAT(std::string(status.message()), HasSubstr(HashHex(other.codec->traits().tables_hash)));
  ShardCluster same(subject, 1, kCells);
  EXPECT_TRUE(ImportShard(*bytes, same.shard(0)).ok());
}

class ShardIoDamage : public ::testing::Test {
 protected:
  ShardIoDamage() : from_(MockSubjects()[3]), cluster_(from_, 2, kCells), to_(from_, 1, kCells) {
    EXPECT_TRUE(cluster_.Step(300).ok());
    bytes_ = *ExportShard(cluster_.shard(cluster_.map().Home(0)), 0);
  }
  absl::Status Import(const std::vector<uint8_t>& bytes) {
    const absl::Status status = ImportShard(bytes, to_.shard(0));
    if (!status.ok()) {
      EXPECT_EQ(to_.shard(0).bytes(), 0);
      EXPECT_EQ(to_.pool(0).bytes_in_use(), 0);
      EXPECT_TRUE(to_.Read().empty());
    }
    return status;
  }

  Subject from_;
  ShardCluster cluster_, to_;
  std::vector<uint8_t> bytes_;
};

TEST_F(ShardIoDamage, HeaderIsAsDocumented) {
  EXPECT_EQ(std::memcmp(bytes_.data(), "KVRSHARD", 8), 0);
  const auto number = [&](int at, int size) {
    uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + at, size);
    return value;
  };
  EXPECT_EQ(number(8, 4), 1u);
  const uint64_t head = number(12, 4);
  EXPECT_EQ(head, 144u);  // 128 + "mock" + "cpu-1", up to a multiple of 8
  EXPECT_EQ(number(16, 8), bytes_.size() - head);
  EXPECT_EQ(number(24, 8), Hash64(bytes_.data() + head, bytes_.size() - head));
  EXPECT_EQ(number(40, 8), 300u);
  EXPECT_EQ(number(68, 4), 64u);
  EXPECT_EQ(number(76, 4), 16u);
  EXPECT_EQ(number(88, 8), 256u);
  EXPECT_EQ(number(96, 8), 4u);  // blocks of the closed cell
  EXPECT_EQ(number(104, 4), 1u);
  EXPECT_EQ(std::memcmp(bytes_.data() + 128, "mockcpu-1", 9), 0);
  EXPECT_EQ(number(head, 4), 64u);           // tokens of the sequence's first block
  EXPECT_EQ(number(head + 12, 4), 2u + 8u);  // pages and sinks
}

TEST_F(ShardIoDamage, EveryFlippedBitIsFound) {
  for (size_t at = 0; at < bytes_.size(); at += at < 200 ? 1 : 37) {
    std::vector<uint8_t> damaged = bytes_;
    damaged[at] ^= 1 << (at % 8);
    EXPECT_FALSE(Import(damaged).ok()) << "byte " << at;
  }
  EXPECT_TRUE(Import(bytes_).ok());
}

TEST_F(ShardIoDamage, EveryCutIsFound) {
  for (size_t size = 0; size < bytes_.size(); size += size < 200 ? 1 : 101) {
    const std::vector<uint8_t> cut(bytes_.begin(), bytes_.begin() + size);
    EXPECT_EQ(Import(cut).code(), absl::StatusCode::kDataLoss) << size;
  }
  std::vector<uint8_t> longer = bytes_;
  longer.push_back(0);
  EXPECT_EQ(Import(longer).code(), absl::StatusCode::kDataLoss);
}

// Whoever can compute the checksums can still not make the reader leave its bounds.
TEST_F(ShardIoDamage, HostilePayloadWithGoodChecksums) {
  uint32_t head = 0;
  std::memcpy(&head, bytes_.data() + 12, 4);
  for (size_t at = head; at < head + 16; ++at) {
    for (const int value : {0, 1, 5, 63, 65, 128, 255}) {
      std::vector<uint8_t> damaged = bytes_;
      if (damaged[at] == value) continue;
      damaged[at] = static_cast<uint8_t>(value);
      const uint64_t payload = Hash64(damaged.data() + head, damaged.size() - head);
      std::memcpy(damaged.data() + 24, &payload, 8);
      std::memset(damaged.data() + 32, 0, 8);
      const uint64_t whole = Hash64(damaged.data(), head);
      std::memcpy(damaged.data() + 32, &whole, 8);
      EXPECT_EQ(Import(damaged).code(), absl::StatusCode::kDataLoss) << at << " " << value;
    }
  }
}

TEST_F(ShardIoDamage, MismatchesNameBothValues) {
  const auto refused = [&](SequenceShard& shard, const std::string& order) {
    const absl::Status status = ImportShard(bytes_, shard, order);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused(to_.shard(0), "mma-2"), HasSubstr("cpu-1, here mma-2"));
  ShardCluster other_rule(from_, 1, {Visibility::kPacked, 256});
  EXPECT_THAT(refused(other_rule.shard(0), kCpuPageOrder), HasSubstr("visibility"));
  ShardCluster other_shards(from_, 1, kCells, int64_t{1} << 30, 8);
  EXPECT_THAT(refused(other_shards.shard(0), kCpuPageOrder), HasSubstr("16, here 8"));
  ShardCluster other_codec(NamedSubject("f16"), 1, kCells);
  EXPECT_THAT(refused(other_codec.shard(0), kCpuPageOrder), HasSubstr("codec: mock"));
  ASSERT_TRUE(Import(bytes_).ok());
  EXPECT_EQ(ImportShard(bytes_, to_.shard(0)).code(), absl::StatusCode::kInvalidArgument)
      << "twice";
  EXPECT_FALSE(ExportShard(cluster_.shard(1 - cluster_.map().Home(0)), 0).ok()) << "not there";
}

}  // namespace
}  // namespace kvring
