// SPDX-License-Identifier: Apache-2.0
// A calibration artifact: what is written comes back, damage is seen, and it is refused where it does not fit.
#include "kvstore/calibration_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "kvstore/tensor_file.h"
#include "tests/kvstore/shard_cluster.h"

namespace kvring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr KvShape kShape{.layers = 2, .query_heads = 4, .kv_heads = 2, .dk = 64, .dv = 64};

std::shared_ptr<const CodecTables> SomeTables() {
  auto tables = std::make_shared<CodecTables>();
  tables->tensors["nuq3-1%/k_lo"] = {{2, 128}, std::vector<float>(256, -1.25f)};
  tables->tensors["nuq3-1%/k_slots"] = {{2, 2}, {40.0f, 41.0f, 42.0f, 43.0f}};
  tables->tensors["nuq2:post-rope:qnorm/v_cent"] = {{2, 4}, {-1, -.5, .5, 1, -.9, -.3, .3, .9}};
  return tables;
}

class CalibrationFile : public ::testing::Test {
 protected:
  CalibrationFile()
      : path_((std::filesystem::temp_directory_path() /
               ("kvring-" + std::to_string(getpid()) + ".calibration"))
                  .string()),
        rope_(MakeTestRope(kShape)) {
    for (const RopeTable& table : rope_) pointers_.push_back(&table);
    CalibrationInfo& info = calibration_.info;
    info.model_name = "A model, \"quoted\"";
    info.model_hash = "0123456789abcdef0123456789abcdef";
    info.codecs = {"nuq3-1%", "nuq2:post-rope:qnorm"};
    info.texts = {"wiki, valid.raw", "b"};
    info.text_hash = "fedc";
    info.windows = 16;
    info.window = 2048;
    info.seed = 7;
    info.sinks = 4;
    info.served_context = 8192;
    info.shape = kShape;
    info.rope = DescribeRope(pointers_);
    info.loss = 2.7182818284590452;
    calibration_.tables = SomeTables();
  }
  ~CalibrationFile() override { std::filesystem::remove(path_); }

  std::string Bytes() const {
    std::ifstream file(path_, std::ios::binary);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    return bytes.str();
  }
  // Message of the refusal after the change.
  template <typename Change>
  std::string RefusedAfter(Change change) {
    EXPECT_TRUE(WriteCalibration(calibration_, path_).ok());
    TensorFile file = *ReadTensorFile(path_);
    change(file);
    EXPECT_TRUE(WriteTensorFile(file, path_).ok());
    const auto read = ReadCalibration(path_);
    EXPECT_FALSE(read.ok());
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(path_));
    return std::string(read.status().message());
  }

  std::string path_;
  std::vector<RopeTable> rope_;
  std::vector<const RopeTable*> pointers_;
  Calibration calibration_;
};

TEST_F(CalibrationFile, ComesBackAsItWas) {
  ASSERT_TRUE(WriteCalibration(calibration_, path_).ok());
  const std::string bytes = Bytes();
  const auto read = ReadCalibration(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  const CalibrationInfo &a = read->info, &b = calibration_.info;
  EXPECT_EQ(a.version, kCalibrationVersion);
  EXPECT_EQ(a.model_name, b.model_name);
  EXPECT_EQ(a.model_hash, b.model_hash);
  EXPECT_EQ(a.codecs, b.codecs);
  EXPECT_EQ(a.texts, b.texts);
  EXPECT_EQ(a.text_hash, b.text_hash);
  EXPECT_EQ(a.windows, 16);
  EXPECT_EQ(a.window, 2048);
  EXPECT_EQ(a.seed, 7);
  EXPECT_EQ(a.sinks, 4);
  EXPECT_EQ(a.served_context, 8192);
  EXPECT_EQ(a.shape.layers, 2);
  EXPECT_EQ(a.shape.query_heads, 4);
  EXPECT_EQ(a.shape.block_tokens, 64);
  EXPECT_EQ(a.rope, b.rope);
  EXPECT_EQ(a.loss, b.loss);
  ASSERT_EQ(read->tables->tensors.size(), calibration_.tables->tensors.size());
  for (const auto& [name, table] : calibration_.tables->tensors) {
    ASSERT_NE(read->tables->Find(name), nullptr);
    EXPECT_EQ(read->tables->Find(name)->values, table.values) << name;
    EXPECT_EQ(read->tables->Find(name)->shape, table.shape) << name;
  }
  EXPECT_EQ(read->tables->hash, HashTables(*calibration_.tables));
  EXPECT_TRUE(CheckCalibration(*read, path_, b.model_hash, kShape, pointers_).ok());
  ASSERT_TRUE(WriteCalibration(*read, path_).ok());
  EXPECT_EQ(Bytes(), bytes);
}

TEST_F(CalibrationFile, HashFollowsEverythingInTheTables) {
  const uint64_t hash = HashTables(*calibration_.tables);
  EXPECT_EQ(HashTables(*calibration_.tables), hash);
  auto changed = *calibration_.tables;
  auto& table = changed.tensors.begin()->second;
  table.values[0] = std::nextafter(table.values[0], 9.0f);
  EXPECT_NE(HashTables(changed), hash);
  changed = *calibration_.tables;
  changed.tensors.begin()->second.shape.push_back(1);
  EXPECT_NE(HashTables(changed), hash);
  changed = *calibration_.tables;
  auto node = changed.tensors.extract(changed.tensors.begin());
  node.key() += "x";
  changed.tensors.insert(std::move(node));
  EXPECT_NE(HashTables(changed), hash);
}

TEST_F(CalibrationFile, DamageIsSeen) {
  EXPECT_THAT(RefusedAfter([](TensorFile& f) { f.tensors.begin()->second.values[0] += 1.0f; }),
              HasSubstr("'tables.hash'"));
  EXPECT_THAT(RefusedAfter([](TensorFile& f) { f.tensors.erase(f.tensors.begin()); }),
              HasSubstr("'tables.hash'"));
  EXPECT_THAT(RefusedAfter([](TensorFile& f) { f.metadata["windows"] = "17"; }),
              HasSubstr("'metadata.hash'"));
  EXPECT_THAT(RefusedAfter([](TensorFile& f) { f.metadata.erase("model.hash"); }),
              HasSubstr("'metadata.hash'"));
  ASSERT_TRUE(WriteCalibration(calibration_, path_).ok());
  const std::string bytes = Bytes();
  for (int tenth = 0; tenth < 10; ++tenth) {
    std::ofstream(path_, std::ios::binary) << bytes.substr(0, bytes.size() * tenth / 10);
    EXPECT_EQ(ReadCalibration(path_).status().code(), absl::StatusCode::kDataLoss) << tenth;
  }
}

TEST_F(CalibrationFile, OtherKindsAndVersionsAreNamed) {
  EXPECT_THAT(RefusedAfter([](TensorFile& f) { f.metadata.clear(); }),
              HasSubstr("not a calibration of kvring"));
  EXPECT_THAT(RefusedAfter([](TensorFile& f) { f.metadata["format"] = "pt"; }),
              HasSubstr("but 'pt'"));
  EXPECT_THAT(RefusedAfter([](TensorFile& f) { f.metadata["version"] = "2"; }),
              AllOf(HasSubstr("version '2'"), HasSubstr("reads 1")));
}

TEST_F(CalibrationFile, TablesThatAreNotFiniteAreNotWritten) {
  auto tables = std::make_shared<CodecTables>(*calibration_.tables);
  const std::string name = tables->tensors.begin()->first;
  tables->tensors.begin()->second.values[0] = std::numeric_limits<float>::quiet_NaN();
  calibration_.tables = tables;
  const absl::Status status = WriteCalibration(calibration_, path_);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  calibration_.tables = nullptr;
  EXPECT_FALSE(WriteCalibration(calibration_, path_).ok());
}

TEST_F(CalibrationFile, WhatDoesNotFitNamesBothSides) {
  const auto refused = [&](const std::string& hash, const KvShape& shape,
                           const std::vector<const RopeTable*>& rope) {
    const absl::Status status = CheckCalibration(calibration_, "a.cal", hash, shape, rope);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused("99", kShape, pointers_),
              AllOf(HasSubstr("a.cal"), HasSubstr("A model, \"quoted\""),
                    HasSubstr("0123456789abcdef"), HasSubstr("hash is 99")));
  const std::string& hash = calibration_.info.model_hash;
  KvShape shape = kShape;
  shape.kv_heads = 1;
  EXPECT_THAT(refused(hash, shape, pointers_), HasSubstr("shape.kv_heads: 2, this model has 1"));
  shape = kShape;
  shape.block_tokens = 32;
  EXPECT_THAT(refused(hash, shape, pointers_), HasSubstr("block_tokens: 64, this model has 32"));
  std::vector<RopeTable> turned = MakeTestRope(kShape);
  turned[1].inv_freq.back() *= 1.0 + 1e-15;
  EXPECT_THAT(refused(hash, kShape, {&turned[0], &turned[1]}),
              AllOf(HasSubstr("RoPE"), HasSubstr(DescribeRope(pointers_)),
                    HasSubstr(DescribeRope({&turned[0], &turned[1]}))));
  EXPECT_NE(DescribeRope({&turned[0], &turned[1]}), DescribeRope(pointers_));
  EXPECT_THAT(DescribeRope(pointers_), HasSubstr("interleaved, 32 planes, frequencies 1 .."));
}

TEST_F(CalibrationFile, UpdateAndHeldOutComeBackAndAreAbsentWithout) {
  ASSERT_TRUE(WriteCalibration(calibration_, path_).ok());
  const auto plain = ReadCalibration(path_);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE(plain->info.update || plain->info.held_out);
  EXPECT_EQ(Bytes().find("held_out"), std::string::npos) << "old files and new ones are alike";
  calibration_.info.update = CalibrationUpdate{{"a", "b, c"}, "12ab", "77", 8, 512, 3};
  calibration_.info.held_out = HeldOut{2, 2048, {{1.5, 1.625, -0.25, 0.1}, {2, 2.125, 0.2, 1e-9}}};
  ASSERT_TRUE(WriteCalibration(calibration_, path_).ok());
  const auto read = ReadCalibration(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_TRUE(read->info.update && read->info.held_out);
  EXPECT_EQ(read->info.update->texts, (std::vector<std::string>{"a", "b, c"}));
  EXPECT_EQ(read->info.update->text_hash, "12ab");
  EXPECT_EQ(read->info.update->from, "77");
  EXPECT_EQ(read->info.update->windows, 8);
  EXPECT_EQ(read->info.update->window, 512);
  EXPECT_EQ(read->info.update->seed, 3);
  EXPECT_EQ(read->info.held_out->windows, 2);
  ASSERT_EQ(read->info.held_out->points.size(), 2u);
  EXPECT_EQ(read->info.held_out->points[0].nats, -0.25);
  EXPECT_EQ(read->info.held_out->points[1].kl, 1e-9);
  // The tables are the same ones: pages stay readable.
  EXPECT_EQ(read->tables->hash, plain->tables->hash);
}

// log KL is a straight line between points, nats keep their ratio to it.
TEST(HeldOutAt, BetweenAndBeyondItsPoints) {
  const HeldOut held_out{
      2, 2048, {{2, 2.125, 0.2, 0.16}, {3, 3.125, 0.04, 0.04}, {6, 6.125, -1e-3, 0}}};
  EXPECT_DOUBLE_EQ(HeldOutAt(held_out, 2.5).kl, 0.08);
  EXPECT_DOUBLE_EQ(HeldOutAt(held_out, 2.5).nats, 0.08 * (0.2 / 0.16 + 1) / 2);
  EXPECT_DOUBLE_EQ(HeldOutAt(held_out, 2.5).bits, 2.625);
  EXPECT_EQ(HeldOutAt(held_out, 3).kl, 0.04);
  EXPECT_EQ(HeldOutAt(held_out, 3).nats, 0.04);
  EXPECT_DOUBLE_EQ(HeldOutAt(held_out, 4.5).kl, 0.02);  // no logarithm of the last point
  EXPECT_EQ(HeldOutAt(held_out, 1).kl, 0.16);
  EXPECT_EQ(HeldOutAt(held_out, 6).nats, -1e-3);
}

}  // namespace
}  // namespace kvring
