// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/rank_kv.h"

#include <algorithm>

#include "kernels/parallel.h"

namespace kvring {
namespace {

bool SameTable(const RopeTable& a, const RopeTable& b) {
  return &a == &b || (a.pairing == b.pairing && a.head_dim == b.head_dim &&
                      a.inv_freq == b.inv_freq && a.attention_scale == b.attention_scale);
}

// Rows `picked` of a [rows][width] matrix; the matrix itself when they are consecutive.
const float* Pick(const float* rows, const std::vector<int64_t>& picked, int64_t width,
                  std::vector<float>& storage) {
  const int64_t n = static_cast<int64_t>(picked.size());
  if (n == 0 || picked.back() - picked.front() + 1 == n)
    return n == 0 ? rows : rows + picked.front() * width;
  storage.resize(n * width);
  for (int64_t i = 0; i < n; ++i)
    std::copy_n(rows + picked[i] * width, width, storage.data() + i * width);
  return storage.data();
}

}  // namespace

std::unique_ptr<RankKv> RankKv::Create(const RankKvOptions& options) {
  auto kv = std::unique_ptr<RankKv>(new RankKv(options));
  DistributedAttentionOptions attention;
  attention.shape = options.shape;
  attention.rope = options.rope;
  attention.form = options.attention;
  kv->attention_ = DistributedAttention::Create(options.comm, attention);
  return kv;
}

RankSequence* RankKv::Find(SequenceId id) {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? nullptr : it->second.get();
}

RankReport RankKv::Report() const {
  RankReport report;
  const KvShape& s = options_.shape;
  const int64_t row = options_.codec->traits().lossless ? 0 : int64_t{s.kv_heads} * (s.dk + s.dv);
  report.rank = options_.comm->rank();
  report.layers.resize(s.layers);
  for (const auto& [id, sequence] : sequences_) {
    const SequenceShard& shard = sequence->shard();
    report.tokens += shard.local_tokens();
    report.kv_bytes += shard.bytes();
    report.page_bytes += shard.page_bytes();
    report.saturated += shard.counters().saturated;
    report.overflow += shard.counters().overflow;
    report.clamped += shard.counters().clamped;
    for (int layer = 0; layer < s.layers; ++layer) {
      const KvCounters& c = shard.layer_counters()[layer];
      report.layers[layer].Add({c.saturated, c.overflow, shard.local_tokens() * row});
    }
  }
  report.kv_peak_bytes = pool_.peak_bytes();
  report.rss_bytes = ProcessRssBytes();
  report.peak_rss_bytes = ProcessPeakRssBytes();
  return report;
}

absl::Status RankKv::Apply(const SequenceOp& op) {
  if (op.kind == SequenceOp::Kind::kCreate) return Create(op);
  if (op.kind == SequenceOp::Kind::kFork) return Fork(op);
  RankSequence* sequence = Find(op.sequence);
  if (sequence == nullptr)
    return absl::NotFoundError(absl::StrCat("no sequence ", op.sequence, " on this rank"));
  if (op.kind == SequenceOp::Kind::kTruncate) return sequence->shard().Truncate(op.length);
  sequences_.erase(op.sequence);
  return absl::OkStatus();
}

absl::Status RankKv::Create(const SequenceOp& op) {
  if (Find(op.sequence) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("sequence ", op.sequence, " exists already"));
  }
  KVRING_ASSIGN_OR_RETURN(ShardMap map,
                          ShardMap::Create(options_.comm->size(), options_.virtual_shards,
                                           options_.shape.block_tokens, op.rho));
  SequenceShardOptions shard{options_.codec, options_.shape, options_.rope,
                             options_.rule,  &pool_,         options_.comm->rank()};
  KVRING_ASSIGN_OR_RETURN(auto created, SequenceShard::Create(shard, map));
  sequences_[op.sequence] = std::make_unique<RankSequence>(options_.codec, map, std::move(created));
  return absl::OkStatus();
}

absl::Status RankKv::Fork(const SequenceOp& op) {
  RankSequence* source = Find(op.source);
  if (source == nullptr)
    return absl::NotFoundError(absl::StrCat("no sequence ", op.source, " to fork from"));
  KVRING_ASSIGN_OR_RETURN(auto forked, source->shard().Fork(op.length));
  sequences_[op.sequence] =
      std::make_unique<RankSequence>(options_.codec, source->map(), std::move(forked));
  return absl::OkStatus();
}

absl::StatusOr<const Batch*> RankKv::BeginStep(const StepPlan& plan) {
  slices_.clear();
  attention_slices_.clear();
  batch_.ids.clear();
  batch_.positions.clear();
  angles_table_ = nullptr;
  for (const Slice& slice : plan.slices) {
    RankSequence* sequence = Find(slice.sequence);
    if (sequence == nullptr)
      return absl::NotFoundError(absl::StrCat("no sequence ", slice.sequence));
    if (sequence->shard().length() != slice.begin) {
      return absl::InternalError(absl::StrCat("sequence ", slice.sequence, " has ",
                                              sequence->shard().length(),
                                              " tokens, the plan starts at ", slice.begin));
    }
    StepSlice step{&slice, sequence, {}, {}};
    const bool replicated = slice.scheme == Scheme::kReplicated;
    for (int64_t i = 0; i < slice.tokens(); ++i) {
      const int64_t position = slice.begin + i;
      const bool home = sequence->map().Home(position) == options_.comm->rank();
      if (home) {
        step.home_rows.push_back(batch_.rows());
        step.home_positions.push_back(position);
      }
      if (!home && !replicated) continue;
      batch_.ids.push_back(slice.ids[i]);
      batch_.positions.push_back(position);
    }
    slices_.push_back(std::move(step));
    attention_slices_.push_back(
        {sequence, &sequence->map(), options_.rule, slice.begin, slice.tokens(), replicated});
  }
  return &batch_;
}

absl::Status RankKv::AppendSlice(int layer, StepSlice& step, const float* q, const float* k,
                                 const float* v) {
  const KvShape& s = options_.shape;
  SequenceShard& shard = step.sequence->shard();
  std::vector<float> q_rows, k_rows, v_rows;
  AppendRows rows;
  rows.positions = step.home_positions;
  rows.k = Pick(k, step.home_rows, int64_t{s.kv_heads} * s.dk, k_rows);
  rows.v = Pick(v, step.home_rows, int64_t{s.kv_heads} * s.dv, v_rows);
  rows.q = Pick(q, step.home_rows, int64_t{s.query_heads} * s.dk, q_rows);
  if (!step.home_rows.empty()) KVRING_RETURN_IF_ERROR(shard.Append(layer, rows));
  shard.SetLength(step.slice->end());
  if (step.slice->mean_exchange) KVRING_RETURN_IF_ERROR(ExchangeStatistics(layer, step));
  return shard.EncodeReady(layer, step.slice->end());
}

// Every rank sends the sums of its own prefix blocks; all derive the same state from all of them.
absl::Status RankKv::ExchangeStatistics(int layer, StepSlice& step) {
  SequenceShard& shard = step.sequence->shard();
  const ShardMap& map = step.sequence->map();
  const int64_t blocks = shard.prefix_blocks();
  const int64_t floats = int64_t{options_.shape.kv_heads} * options_.codec->SumFloats();
  std::vector<int64_t> bytes(map.ranks(), 0);
  std::vector<std::vector<int64_t>> owned(map.ranks());
  std::vector<float> send;
  for (int64_t b = 0; b < blocks; ++b) {
    const int home = map.Home(b * map.block_tokens());
    bytes[home] += floats * static_cast<int64_t>(sizeof(float));
    owned[home].push_back(b);
    if (home != options_.comm->rank()) continue;
    const float* sums = shard.BlockSums(layer, b);
    send.insert(send.end(), sums, sums + floats);
  }
  std::vector<float> received(blocks * floats), ordered(blocks * floats);
  KVRING_RETURN_IF_ERROR(options_.comm->AllGatherV(send.data(), send.size() * sizeof(float),
                                                   received.data(), bytes,
                                                   absl::Now() + options_.timeout));
  const float* next = received.data();
  for (const std::vector<int64_t>& of_rank : owned) {
    for (const int64_t b : of_rank) {
      std::copy_n(next, floats, ordered.data() + b * floats);
      next += floats;
    }
  }
  return shard.Freeze(layer, ordered.data());
}

void RankKv::RotateQueries(int layer, const float* q) {
  const KvShape& s = options_.shape;
  const RopeTable& table = *options_.rope[layer];
  const int64_t rows = batch_.rows(), width = int64_t{s.query_heads} * s.dk,
                angle_width = 2 * table.planes();
  const bool fresh = angles_table_ == nullptr || !SameTable(*angles_table_, table);
  if (fresh) angles_.resize(rows * angle_width);
  if (static_cast<int64_t>(rotated_.size()) < rows * width) rotated_.resize(rows * width);
  ParallelFor(rows, [&](int64_t r) {
    float* angles = angles_.data() + r * angle_width;
    if (fresh) RopeAngles(table, batch_.positions[r], angles);
    float* out = rotated_.data() + r * width;
    std::copy_n(q + r * width, width, out);
    for (int h = 0; h < s.query_heads; ++h) RopeRotate(table, angles, out + h * s.dk);
  });
  angles_table_ = &table;
}

absl::Status RankKv::Attend(int layer, const float* q, const float* k, const float* v, float* out) {
  for (StepSlice& step : slices_) {
    const absl::Status appended = AppendSlice(layer, step, q, k, v);
    if (!appended.ok()) return Annotate(appended, absl::StrCat("sequence ", step.slice->sequence));
  }
  RotateQueries(layer, q);
  KVRING_RETURN_IF_ERROR(attention_->Run(layer, attention_slices_, rotated_.data(), out,
                                         absl::Now() + options_.timeout));
  for (StepSlice& step : slices_) step.sequence->shard().CloseCells(layer, step.slice->end());
  return absl::OkStatus();
}

}  // namespace kvring
