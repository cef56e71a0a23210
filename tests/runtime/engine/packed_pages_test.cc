// SPDX-License-Identifier: Apache-2.0
// The pages that a model's run leaves behind, on every rank: the same bytes on any number of ranks, as many as stated.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <tuple>

#include "kvstore/codec_spec.h"
#include "runtime/engine/executor.h"
#include "tests/support/model_run.h"
#include "tests/support/rank_harness.h"
#include "tests/support/tc_tables.h"

namespace kvring {
namespace {

constexpr int kBlock = 64;
constexpr SequenceId kSequence = 1;

const TestModel& Model() {
  static const TestModel model = [] {
    TinyModelOptions options;
    options.hidden = 128;
    options.query_heads = 6;
    options.kv_heads = 2;
    options.head_dim = 32;
    options.ffn = 192;
    return *MakeTestModel(options, LinearMath::kF32);
  }();
  return model;
}

KvShape Shape() { return Model().config.kv_shape(kBlock); }

// What all ranks hold of the sequence, by (layer, head, first position); position -1: its state, which every rank has.
struct Held {
  std::map<std::tuple<int, int, int64_t>, std::string> bytes;
  int64_t page_bytes = 0;
};

void AddPages(const RankSequence& sequence, Held& held) {
  const KvShape shape = Shape();
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      std::vector<PageView> pages;
      for (int v = 0; v < sequence.map().virtual_shards(); ++v)
        sequence.Pages(layer, head, v, pages);
      const int64_t size = sequence.codec().PageSize(layer, head).total();
      for (const PageView& page : pages) {
        if (page.packed == nullptr) continue;
        std::string& bytes = held.bytes[{layer, head, page.begin}];
        EXPECT_TRUE(bytes.empty()) << "two ranks hold the block at " << page.begin;
        bytes.assign(reinterpret_cast<const char*>(page.packed), size);
      }
      const float* const state = sequence.State(layer, head);
      if (state == nullptr) continue;
      const std::string own(reinterpret_cast<const char*>(state),
                            sequence.codec().StateFloats() * sizeof(float));
      std::string& known = held.bytes[{layer, head, -1}];
      EXPECT_TRUE(known.empty() || known == own) << "ranks differ in their state";
      known = own;
    }
  }
  held.page_bytes += sequence.shard().page_bytes();
}

// Steps that read `ids` in chunks; the last one ends the job.
std::vector<StepPlan> Plans(const Codec& codec, const std::vector<int32_t>& ids, int64_t chunk) {
  const int64_t length = static_cast<int64_t>(ids.size()), prefix = codec.traits().prefix_tokens;
  std::vector<StepPlan> plans;
  for (int64_t begin = 0; begin < length; begin += chunk) {
    const int64_t end = std::min(length, begin + chunk);
    StepPlan plan;
    plan.numerics = Model().numerics;
    if (begin == 0) plan.ops.push_back({SequenceOp::Kind::kCreate, kSequence, 0, 0, 0});
    Slice slice;
    slice.sequence = kSequence;
    slice.begin = begin;
    slice.ids.assign(ids.begin() + begin, ids.begin() + end);
    slice.scheme = Scheme::kGatherQ;
    slice.mean_exchange = begin < prefix && end >= prefix;
    plan.slices.push_back(slice);
    plan.last = end == length;
    plans.push_back(plan);
  }
  return plans;
}

Held RunOn(const std::string& spec, int ranks, int64_t length, int64_t chunk) {
  std::vector<const RopeTable*> rope;
  for (const RopeTable& table : Model().config.rope) rope.push_back(&table);
  ExecutorOptions options;
  options.weights = Model().weights;
  options.codec =
      *MakeCodec(spec, Shape(), rope,
                 NeedsCalibration(spec) ? TestTcTables(Shape(), {.sides = 1.0f}) : nullptr);
  options.rule = {Visibility::kPacked, 512};
  options.block_tokens = kBlock;
  options.timeout = absl::Minutes(1);
  options.numerics = Model().numerics;
  const std::vector<StepPlan> plans =
      Plans(*options.codec, RandomIds(length, 0, Model().config.vocab, 11), chunk);
  Held held;
  std::mutex mutex;
  const auto body = [&](Communicator& comm) -> absl::Status {
    KVRING_ASSIGN_OR_RETURN(const auto executor, Executor::Create(options, &comm));
    if (comm.rank() == 0) {
      for (const StepPlan& plan : plans) KVRING_RETURN_IF_ERROR(executor->Lead(plan).status());
    } else {
      KVRING_RETURN_IF_ERROR(executor->Follow(absl::Minutes(1)));
    }
    const std::lock_guard lock(mutex);
    AddPages(*executor->kv().Find(kSequence), held);
    return absl::OkStatus();
  };
  for (const absl::Status& status : RunRanks(ranks, body)) EXPECT_TRUE(status.ok()) << status;
  return held;
}

class PackedPages : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Codecs, PackedPages,
                         testing::Values("rot3", "tc3", "tc@2.3", "tc2:adapt", "tc1.5:adapt"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

TEST_P(PackedPages, SameBytesOnAnyNumberOfRanks) {
  constexpr int64_t kLength = 640;  // beyond the 512 tokens that adapt waits for
  const Held one = RunOn(GetParam(), 1, kLength, kLength);
  const KvShape shape = Shape();
  const bool state = one.bytes.count({0, 0, -1}) > 0;
  EXPECT_EQ(one.bytes.size(), shape.layers * shape.kv_heads * (kLength / kBlock + (state ? 1 : 0)));
  EXPECT_EQ(state, GetParam() == "rot3" || GetParam().find(":adapt") != std::string::npos);
  for (const auto& [ranks, chunk] :
       std::vector<std::pair<int, int64_t>>{{1, 100}, {2, 640}, {3, 100}, {4, 640}, {8, 37}}) {
    const Held other = RunOn(GetParam(), ranks, kLength, chunk);
    EXPECT_EQ(one.bytes, other.bytes) << ranks << " ranks, chunk " << chunk;
    EXPECT_EQ(one.page_bytes, other.page_bytes) << ranks << " ranks";
  }
}

TEST(PackedPagesSize, StatedBitsAreTheRunsPages) {
  std::vector<const RopeTable*> rope;
  for (const RopeTable& table : Model().config.rope) rope.push_back(&table);
  const KvShape shape = Shape();
  for (const char* spec : {"tc@1.0", "tc@1.7", "tc@2.9", "tc@4.4", "tc@6.0", "tc@3.3:adapt"}) {
    const auto codec = MakeCodec(spec, shape, rope, TestTcTables(shape, {.sides = 1.0f}));
    ASSERT_TRUE(codec.ok()) << codec.status();
    const int64_t length = (*codec)->traits().prefix_tokens + kBlock;
    const double elements =
        static_cast<double>(length) * shape.layers * shape.kv_heads * (shape.dk + shape.dv);
    for (const int ranks : {1, 4}) {
      EXPECT_EQ(8.0 * static_cast<double>(RunOn(spec, ranks, length, length).page_bytes),
                BitsPerElement(**codec, shape) * elements)
          << spec << " on " << ranks;
    }
  }
}

}  // namespace
}  // namespace kvring
