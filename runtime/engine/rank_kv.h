// SPDX-License-Identifier: Apache-2.0
// This rank's sequences, and the KvBackend that runs a step's attention over them: append, freeze, encode, attend, close.
// One thread drives it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "dist/communicator.h"
#include "dist/distributed_attention.h"
#include "kernels/visibility.h"
#include "kvstore/sequence_shard.h"
#include "runtime/engine/rank_report.h"
#include "runtime/engine/step_plan.h"
#include "runtime/engine/transformer.h"

namespace kvring {

struct RankKvOptions {
  std::shared_ptr<const Codec> codec;
  KvShape shape;
  std::vector<const RopeTable*> rope;  // [layers]
  VisibilityRule rule;
  int virtual_shards = 64;
  int64_t pool_bytes = 0;  // limit of this rank's pages
  bool huge_pages = true;  // of the system, where the cache is large enough for them
  absl::Duration timeout;  // of one exchange
  Communicator* comm = nullptr;
  AttentionForm attention;
};

// One sequence on this rank, as dist sees it.
class RankSequence : public KvSource {
 public:
  RankSequence(std::shared_ptr<const Codec> codec, const ShardMap& map,
               std::unique_ptr<SequenceShard> shard)
      : codec_(std::move(codec)), map_(map), shard_(std::move(shard)) {}
  const Codec& codec() const override { return *codec_; }
  const float* State(int layer, int head) const override { return shard_->State(layer, head); }
  void Pages(int layer, int head, int virtual_shard, std::vector<PageView>& pages) const override {
    shard_->Pages(layer, head, virtual_shard, pages);
  }
  const ShardMap& map() const { return map_; }
  SequenceShard& shard() { return *shard_; }
  const SequenceShard& shard() const { return *shard_; }

 private:
  std::shared_ptr<const Codec> codec_;
  ShardMap map_;
  std::unique_ptr<SequenceShard> shard_;
};

class RankKv : public KvBackend {
 public:
  static std::unique_ptr<RankKv> Create(const RankKvOptions& options);

  absl::Status Apply(const SequenceOp& op);
  // Sets the slices of the coming step and returns the rows that this rank computes, slice by slice: all tokens of a
  // replicated slice, those with home here of a gather-Q slice; valid until the next one. `plan` outlives the step.
  absl::StatusOr<const Batch*> BeginStep(const StepPlan& plan);
  absl::Status Attend(int layer, const float* q, const float* k, const float* v,
                      float* out) override;

  RankSequence* Find(SequenceId id);
  const RankKvOptions& options() const { return options_; }
  const PagePool& pool() const { return pool_; }
  RankReport Report() const;

 private:
  struct StepSlice {
    const Slice* slice;
    RankSequence* sequence;
    std::vector<int64_t> home_rows;       // rows (within the batch) whose home is this rank
    std::vector<int64_t> home_positions;  // their positions
  };
  explicit RankKv(const RankKvOptions& options)
      : options_(options),
        pool_({.limit_bytes = options.pool_bytes, .huge_pages = options.huge_pages}) {}
  absl::Status Create(const SequenceOp& op);
  absl::Status Fork(const SequenceOp& op);
  absl::Status AppendSlice(int layer, StepSlice& slice, const float* q, const float* k,
                           const float* v);
  absl::Status ExchangeStatistics(int layer, StepSlice& slice);
  void RotateQueries(int layer, const float* q);

  RankKvOptions options_;
  PagePool pool_;
  std::unique_ptr<DistributedAttention> attention_;
  std::map<SequenceId, std::unique_ptr<RankSequence>> sequences_;
  std::vector<StepSlice> slices_;
  std::vector<AttentionSlice> attention_slices_;
  Batch batch_;
  std::vector<float> angles_;  // [rows][planes][2] of angles_table_
  const RopeTable* angles_table_ = nullptr;
  std::vector<float> rotated_;
};

}  // namespace kvring
