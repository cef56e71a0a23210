// SPDX-License-Identifier: Apache-2.0
// Exact rows to pages, and exact rows dropped when no later query reads them.
#include <algorithm>

#include "kernels/convert.h"
#include "kernels/parallel.h"
#include "kvstore/shard_impl.h"

namespace kvring {

absl::Status SequenceShardImpl::EncodeReady(int layer, int64_t length) {
  SetLength(length);
  Layer& target = layers_[layer];
  if (traits_.lossless || !Ready(target)) return absl::OkStatus();
  tasks_.clear();
  CollectReady(target, tasks_);
  KVRING_RETURN_IF_ERROR(RunTasks(layer, tasks_));
  for (const EncodeTask& task : tasks_) Count(layer, task.counted);
  for (ShardBlocks& shard : target.shards) {
    const std::vector<Block>& blocks = shard.blocks;
    while (shard.first_open < static_cast<int64_t>(blocks.size()) &&
           blocks[shard.first_open].encoded == block_tokens()) {
      ++shard.first_open;
    }
  }
  return absl::OkStatus();
}

void SequenceShardImpl::CollectReady(Layer& layer, std::vector<EncodeTask>& tasks) {
  for (size_t run_index = 0; run_index < layer.shards.size(); ++run_index) {
    ShardBlocks& shard = layer.shards[run_index];
    for (size_t cycle = shard.first_open; cycle < shard.blocks.size(); ++cycle) {
      Block& block = shard.blocks[cycle];
      if (block.encoded == block.tokens) continue;
      if (traits_.page_scoped() && block.tokens < block_tokens()) continue;
      EncodeTask task;
      task.block = BlockIndex(static_cast<int>(run_index), static_cast<int64_t>(cycle));
      task.target = &block;
      task.pages = PagesOf(shard, cycle);
      task.first = block.encoded;
      if (task.block == 0 && !traits_.page_scoped()) {
        task.first = std::max(task.first, std::min(traits_.sink_tokens, block.tokens));
      }
      task.count = block.tokens - task.first;
      tasks.push_back(task);
    }
  }
}

absl::Status SequenceShardImpl::RunTasks(int layer, std::vector<EncodeTask>& tasks) {
  for (const EncodeTask& task : tasks) {
    const absl::Status ensured = EnsurePages(layer, task.pages);
    if (!ensured.ok())
      return Annotate(ensured, absl::StrCat("layer ", layer, ", block ", task.block));
  }
  if (traits_.growing_page) KVRING_RETURN_IF_ERROR(GrowPages(layer, tasks));
  ParallelFor(static_cast<int64_t>(tasks.size()), [&](int64_t i) { RunTask(layer, tasks[i]); });
  for (const EncodeTask& task : tasks) {
    if (task.error) {
      return absl::InternalError(absl::StrCat("codec ", traits_.id, ", layer ", layer, ", block ",
                                              task.block, ": ", task.error.message));
    }
    task.target->encoded = task.target->tokens;
  }
  return absl::OkStatus();
}

// Sizes are asked for together, since the codec looks for outliers to answer; slots are taken one by one.
absl::Status SequenceShardImpl::GrowPages(int layer, std::vector<EncodeTask>& tasks) {
  ParallelFor(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    if (tasks[i].count == 0) return;
    thread_local TaskArgs of;
    ArgsOf(layer, tasks[i], of);
    tasks[i].shared_bytes = codec_->SharedPageBytes(of.args);
  });
  for (const EncodeTask& task : tasks) {
    KVRING_RETURN_IF_ERROR(
        Annotate(GrowPage(task.shared_bytes, task.pages[0]),
                 absl::StrCat("layer ", layer, ", block ", task.block, ", a page that grows")));
  }
  return absl::OkStatus();
}

void SequenceShardImpl::ArgsOf(int layer, EncodeTask& task, TaskArgs& to) const {
  const Half* const exact_k = Halves(task.target->exact) + task.first * KeyRow();
  const Half* const exact_v = ExactV(task.target->exact) + task.first * ValueRow();
  to.k.resize(task.count * KeyRow());
  to.v.resize(task.count * ValueRow());
  HalfToFloat(exact_k, task.count * KeyRow(), to.k.data());
  HalfToFloat(exact_v, task.count * ValueRow(), to.v.data());
  to.pages.clear();
  for (int head = 0; head < shape_.kv_heads; ++head) to.pages.push_back(task.pages[head].data());
  EncodeArgs& args = to.args;
  args.layer = layer;
  args.block_begin = task.block * block_tokens();
  args.first = task.first;
  args.count = task.count;
  args.k = to.k.data();
  args.v = to.v.data();
  args.state = State(layer, 0);
  args.pages = to.pages.data();
  args.saturated = &task.counted.saturated;
  args.overflow = &task.counted.overflow;
}

void SequenceShardImpl::RunTask(int layer, EncodeTask& task) const {
  if (task.count == 0) return;
  thread_local TaskArgs of;
  ArgsOf(layer, task, of);
  task.error = codec_->Encode(of.args);
}

void SequenceShardImpl::CloseCells(int layer, int64_t length) {
  Layer& target = layers_[layer];
  if (traits_.lossless) return;
  const int64_t kept = FirstKeptBlock(traits_, rule_, shape_.block_tokens, length, Ready(target));
  DropExact(target, kept);
  target.gone = std::max(target.gone, kept);
  if (target.gone > 0) DropStatistics(target);
}

void SequenceShardImpl::DropExact(Layer& layer, int64_t kept) {
  for (size_t run_index = 0; run_index < layer.shards.size(); ++run_index) {
    ShardBlocks& shard = layer.shards[run_index];
    const int64_t cycles = static_cast<int64_t>(shard.blocks.size());
    for (int64_t cycle = shard.first_exact; cycle < cycles; ++cycle) {
      if (BlockIndex(static_cast<int>(run_index), cycle) >= kept) break;
      Block& block = shard.blocks[cycle];
      if (block.encoded == block.tokens) Release(block.exact);
    }
    while (shard.first_exact < cycles && shard.blocks[shard.first_exact].tokens == block_tokens() &&
           !shard.blocks[shard.first_exact].exact) {
      ++shard.first_exact;
    }
  }
}

// Without exact rows no cut inside the prefix is possible, so nothing will ask for the statistics again.
void SequenceShardImpl::DropStatistics(Layer& layer) {
  for (PageRef& stats : layer.stats) Release(stats);
  for (std::vector<float>& sums : layer.sums) std::vector<float>().swap(sums);
}

}  // namespace kvring
