// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/executor.h"

#include <algorithm>

namespace kvring {
namespace {

// First position of the rows that a slice wants, or its end when it wants none.
int64_t WantBegin(const Slice& slice) {
  if (slice.want == Want::kAll) return slice.begin;
  return slice.want == Want::kLast ? slice.end() - 1 : slice.end();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const ExecutorOptions& options,
                                                           Communicator* comm) {
  const ModelConfig& config = options.weights->config();
  if (options.rule.cell % options.block_tokens != 0 || options.rule.cell <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--cell ", options.rule.cell,
                     " must be a positive multiple of --block-tokens ", options.block_tokens));
  }
  KVRING_RETURN_IF_ERROR(
      ShardMap::Create(comm->size(), options.virtual_shards, options.block_tokens, 0).status());
  auto executor = std::unique_ptr<Executor>(new Executor(options, comm));
  RankKvOptions kv;
  kv.codec = options.codec;
  kv.shape = config.kv_shape(options.block_tokens);
  for (const RopeTable& table : config.rope) kv.rope.push_back(&table);
  kv.rule = options.rule;
  kv.virtual_shards = options.virtual_shards;
  kv.pool_bytes = options.pool_bytes;
  kv.huge_pages = options.huge_pages;
  kv.timeout = options.timeout;
  kv.comm = comm;
  kv.attention = options.attention;
  executor->kv_ = RankKv::Create(kv);
  return executor;
}

absl::Status Executor::CheckPlan(const StepPlan& plan) const {
  if (plan.numerics != options_.numerics) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", comm_->rank(), " computes with numerics '", options_.numerics,
                     "', the plan with '", plan.numerics,
                     "': start all ranks with the same --math on the same kind of CPU"));
  }
  const int vocab = options_.weights->config().vocab;
  for (const Slice& slice : plan.slices) {
    for (const int32_t id : slice.ids) {
      if (id < 0 || id >= vocab) {
        return absl::InvalidArgumentError(
            absl::StrCat("token id ", id, " is outside the vocabulary of ", vocab));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<StepResult> Executor::Run(const StepPlan& plan, ActivationTap* tap) {
  const absl::Time start = absl::Now();
  absl::StatusOr<StepResult> result = RunChecked(plan, tap);
  if (!result.ok()) {
    const absl::Status status =
        Annotate(result.status(), absl::StrCat("rank ", comm_->rank(), " step ", plan.step));
    comm_->Abort(status);
    return status;
  }
  result->seconds = absl::ToDoubleSeconds(absl::Now() - start);
  return result;
}

absl::StatusOr<StepResult> Executor::RunChecked(const StepPlan& plan, ActivationTap* tap) {
  KVRING_RETURN_IF_ERROR(CheckPlan(plan));
  for (const SequenceOp& op : plan.ops) KVRING_RETURN_IF_ERROR(kv_->Apply(op));
  StepResult result;
  if (!plan.slices.empty()) {
    KVRING_ASSIGN_OR_RETURN(const Batch* const batch, kv_->BeginStep(plan));
    KVRING_ASSIGN_OR_RETURN(const std::span<const float> hidden,
                            transformer_.Forward(*batch, *kv_, tap));
    KVRING_RETURN_IF_ERROR(Collect(plan, *batch, hidden, result));
  }
  if (plan.report) KVRING_RETURN_IF_ERROR(Report(result));
  return result;
}

absl::Status Executor::Report(StepResult& result) {
  const std::vector<int64_t> mine = PackReport(kv_->Report());
  const int ranks = comm_->size();
  std::vector<int64_t> all = mine;
  if (ranks > 1) {
    const int64_t bytes = static_cast<int64_t>(mine.size() * sizeof(int64_t));
    all.resize(ranks * mine.size());
    KVRING_RETURN_IF_ERROR(comm_->AllGatherV(mine.data(), bytes, all.data(),
                                             std::vector<int64_t>(ranks, bytes),
                                             absl::Now() + options_.timeout));
  }
  for (int r = 0; r < ranks; ++r) {
    const auto begin = all.begin() + static_cast<int64_t>(r * mine.size());
    result.reports.push_back(UnpackReport({begin, begin + static_cast<int64_t>(mine.size())}));
  }
  return absl::OkStatus();
}

// Wanted rows travel to rank 0: those of gather-Q slices from their home, replicated ones are there already.
absl::Status Executor::Collect(const StepPlan& plan, const Batch& batch,
                               std::span<const float> hidden, StepResult& result) {
  const int64_t width = options_.weights->config().hidden;
  const int n = comm_->size(), me = comm_->rank();
  std::vector<float> send;
  std::vector<int64_t> rows_from(n, 0);
  int64_t row = 0;
  for (const Slice& slice : plan.slices) {
    const ShardMap& map = kv_->Find(slice.sequence)->map();
    for (int64_t t = slice.begin; t < slice.end(); ++t) {
      const int owner = slice.scheme == Scheme::kReplicated ? 0 : map.Home(t);
      const bool mine = slice.scheme == Scheme::kReplicated || owner == me;
      if (t >= WantBegin(slice)) {
        ++rows_from[owner];
        if (owner == me)
          send.insert(send.end(), hidden.data() + row * width, hidden.data() + (row + 1) * width);
      }
      row += mine ? 1 : 0;
    }
  }
  int64_t total = 0;
  for (const int64_t r : rows_from) total += r;
  if (total == 0) return absl::OkStatus();
  const int64_t row_bytes = width * static_cast<int64_t>(sizeof(float));
  std::vector<float> received(me == 0 ? total * width : 0);
  std::vector<int64_t> send_bytes(n, 0), recv_bytes(n, 0);
  send_bytes[0] = rows_from[me] * row_bytes;
  if (me == 0)
    std::transform(rows_from.begin(), rows_from.end(), recv_bytes.begin(),
                   [&](int64_t r) { return r * row_bytes; });
  if (n > 1) {
    KVRING_RETURN_IF_ERROR(comm_->AllToAllV(send.data(), send_bytes, received.data(), recv_bytes,
                                            absl::Now() + options_.timeout));
  } else {
    received.swap(send);
  }
  if (me != 0) return absl::OkStatus();
  std::vector<const float*> next(n, received.data());
  for (int r = 1; r < n; ++r) next[r] = next[r - 1] + rows_from[r - 1] * width;
  for (const Slice& slice : plan.slices) {
    if (slice.want == Want::kNothing) continue;
    SliceOutput out{slice.sequence, WantBegin(slice), slice.end() - WantBegin(slice), {}};
    for (int64_t t = WantBegin(slice); t < slice.end(); ++t) {
      const int owner =
          slice.scheme == Scheme::kReplicated ? 0 : kv_->Find(slice.sequence)->map().Home(t);
      out.hidden.insert(out.hidden.end(), next[owner], next[owner] + width);
      next[owner] += width;
    }
    result.outputs.push_back(std::move(out));
  }
  return absl::OkStatus();
}

absl::StatusOr<StepResult> Executor::Lead(const StepPlan& plan, ActivationTap* tap) {
  if (comm_->size() > 1) {
    std::string bytes = SerializePlan(plan);
    KVRING_RETURN_IF_ERROR(comm_->BroadcastString(0, bytes, absl::Now() + options_.timeout));
  }
  return Run(plan, tap);
}

absl::Status Executor::Follow(absl::Duration idle_limit) {
  for (;;) {
    std::string bytes;
    KVRING_RETURN_IF_ERROR(comm_->BroadcastString(0, bytes, absl::Now() + idle_limit));
    absl::StatusOr<StepPlan> plan = ParsePlan(bytes);
    if (!plan.ok()) {
      comm_->Abort(plan.status());
      return plan.status();
    }
    KVRING_RETURN_IF_ERROR(Run(*plan).status());
    if (plan->last) return absl::OkStatus();
  }
}

}  // namespace kvring
