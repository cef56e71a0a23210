// SPDX-License-Identifier: Apache-2.0
// Memory that a step of decoding asks for, counted by an operator new of this program's own. A binary of its own, since the
// counter sees everybody.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "kernels/parallel.h"
#include "kvstore/codec_spec.h"
#include "runtime/engine/rank_group.h"
#include "tests/support/model_run.h"

namespace {

std::atomic<int64_t> g_taken{0};

void* Take(size_t bytes, size_t alignment) {
  g_taken.fetch_add(1, std::memory_order_relaxed);
  const size_t whole = (bytes + alignment) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, whole);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return Take(bytes, 16); }
void* operator new[](size_t bytes) { return Take(bytes, 16); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Take(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return Take(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace kvring {
namespace {

constexpr int64_t kBlock = 64;

TestModel ModelOf(int layers) {
  TinyModelOptions options;
  options.layers = layers;
  options.hidden = 96;
  options.query_heads = 4;
  options.kv_heads = 2;
  options.head_dim = 32;
  options.ffn = 128;
  return *MakeTestModel(options, LinearMath::kF32);
}

std::unique_ptr<RankGroup> GroupOf(const TestModel& model, const std::string& codec, int threads,
                                   AttentionMath math) {
  std::vector<const RopeTable*> rope;
  for (const RopeTable& table : model.config.rope) rope.push_back(&table);
  ExecutorOptions options;
  options.weights = model.weights;
  options.codec = *MakeCodec(codec, model.config.kv_shape(kBlock), rope);
  options.timeout = absl::Minutes(1);
  options.numerics = model.numerics;
  options.attention.math = math;
  return *RankGroup::Threads(1, threads, options);
}

// What a step takes, as a rule: the middle of what the last steps of a block took. Not the first ones: a block gets its pages
// from the pool, and tables may grow. And not the most: with two threads, a worker may come to its first task of some kind
// late, and makes its buffers then.
int64_t TakenByAStep(const TestModel& model, const std::string& codec, int threads,
                     AttentionMath math, int64_t context) {
  const std::unique_ptr<RankGroup> group = GroupOf(model, codec, threads, math);
  Executor& leader = group->leader();
  StepPlan plan;
  plan.numerics = model.numerics;
  plan.ops = {{SequenceOp::Kind::kCreate, 1, 0, 0, 0}};
  Slice slice;
  slice.sequence = 1;
  slice.ids = RandomIds(context, 0, 256, 3);
  slice.scheme = Scheme::kGatherQ;
  const int64_t prefix = leader.codec().traits().prefix_tokens;
  slice.mean_exchange = prefix > 0 && context >= prefix;
  plan.slices = {slice};
  EXPECT_TRUE(leader.Lead(plan).ok());
  plan.ops.clear();
  plan.slices[0].ids = {7};
  plan.slices[0].scheme = Scheme::kReplicated;
  plan.slices[0].mean_exchange = false;
  plan.slices[0].want = Want::kLast;
  std::vector<int64_t> taken;
  for (int64_t length = context; length < context + kBlock; ++length) {
    plan.slices[0].begin = length;
    const int64_t before = g_taken.load();
    EXPECT_TRUE(leader.Lead(plan).ok());
    const int64_t by_step = g_taken.load() - before;
    if (length >= context + kBlock / 2) taken.push_back(by_step);
  }
  std::sort(taken.begin(), taken.end());
  return taken[taken.size() / 2];
}

class Allocation : public testing::TestWithParam<std::tuple<std::string, AttentionMath>> {};

// Per slice and step: its rows and their positions (2), then the rows that the caller gets, and who sends how many of them (8).
// None of it is a layer's, a page's or a kernel's.
constexpr int64_t kOfAStep = 10;

TEST_P(Allocation, AStepTakesTheSameForAnyContextAndAnyNumberOfLayers) {
  const auto [codec, math] = GetParam();
  const TestModel shallow = ModelOf(2), deep = ModelOf(5);
  for (const int threads : {1, 2}) {
    const int64_t small = TakenByAStep(shallow, codec, threads, math, 2 * kBlock);
    EXPECT_LE(small, kOfAStep) << threads << " threads";
    EXPECT_EQ(TakenByAStep(shallow, codec, threads, math, 9 * kBlock), small);
    EXPECT_EQ(TakenByAStep(shallow, codec, threads, math, 80 * kBlock), small);
    EXPECT_EQ(TakenByAStep(deep, codec, threads, math, 9 * kBlock), small);
  }
  SetThreads(1);
}

// Codecs whose pages are decoded to tiles take room for a page's scales there.
INSTANTIATE_TEST_SUITE_P(Codecs, Allocation,
                         testing::Values(std::tuple("rot4", AttentionMath::kInt8),
                                         std::tuple("rot3", AttentionMath::kInt8),
                                         std::tuple("f16", AttentionMath::kTile)),
                         [](const auto& info) { return std::get<0>(info.param); });

}  // namespace
}  // namespace kvring
