// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/engine.h"

#include <algorithm>

namespace kvring {
namespace {

constexpr int64_t kFirstChunk = 256;
constexpr double kStepSeconds = 1.0;

}  // namespace

struct Engine::Running {
  SequenceId id = 0;
  EngineRequest request;
  int64_t done = 0;  // tokens that the model has seen
  int64_t new_tokens = 0;
  int32_t last_token = 0;
  int rho = 0;
  bool created = false;
  bool finished = false;
  std::vector<int64_t> reserved;  // [ranks]

  int64_t prompt_tokens() const { return static_cast<int64_t>(request.prompt.size()); }
  bool decoding() const { return done >= prompt_tokens(); }
  int64_t total() const { return prompt_tokens() + request.max_new_tokens; }
};

Engine::Engine(const EngineOptions& options, Executor* leader)
    : options_(options), leader_(leader) {}
Engine::~Engine() = default;

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       Executor* leader) {
  if (options.chunk < 0)
    return absl::InvalidArgumentError(absl::StrCat("--chunk ", options.chunk, " is negative"));
  auto engine = std::unique_ptr<Engine>(new Engine(options, leader));
  engine->chunk_ = options.chunk > 0 ? options.chunk : kFirstChunk;
  engine->reserved_.assign(leader->comm().size(), 0);
  return engine;
}

int64_t Engine::max_chunk() const {
  const int64_t unit = int64_t{options_.block_tokens} * leader_->comm().size();
  return options_.chunk > 0 ? options_.chunk : std::max(unit, kMaxChunk);
}

std::vector<int64_t> Engine::ReservedBytes(int64_t tokens) const {
  const KvShape shape = options_.weights->config().kv_shape(options_.block_tokens);
  const int ranks = leader_->comm().size();
  const auto map = ShardMap::Create(ranks, options_.virtual_shards, options_.block_tokens, 0);
  std::vector<int64_t> bytes(ranks);
  for (int slot = 0; slot < ranks; ++slot) {
    bytes[slot] = KvPeakBytes(*options_.codec, shape, *map, slot, tokens,
                              std::min(tokens, max_chunk()), options_.rule);
  }
  return bytes;
}

absl::StatusOr<SequenceId> Engine::Submit(EngineRequest request) {
  if (request.prompt.empty()) return absl::InvalidArgumentError("the prompt has no tokens");
  if (request.max_new_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("-n ", request.max_new_tokens, ": at least 1 new token is needed"));
  }
  KVRING_RETURN_IF_ERROR(CheckSampling(request.sampling));
  auto running = std::make_unique<Running>();
  running->id = next_id_++;
  running->request = std::move(request);
  running->reserved = ReservedBytes(running->total());
  const int64_t needed = *std::max_element(running->reserved.begin(), running->reserved.end());
  if (needed > options_.pool_bytes_per_rank) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the KV cache of ", running->total(), " tokens needs ", needed, " bytes on the fullest of ",
        running->reserved.size(), " ranks, ", options_.pool_bytes_per_rank,
        " are available: use fewer tokens, more ranks or a smaller --kv codec"));
  }
  const SequenceId id = running->id;
  waiting_.push_back(std::move(running));
  return id;
}

void Engine::Cancel(SequenceId id) {
  for (auto* list : {&waiting_, &running_}) {
    for (auto& request : *list) {
      if (request->id == id) Finish(*request, absl::CancelledError("cancelled"), "cancelled");
    }
  }
  std::erase_if(waiting_, [](const auto& r) { return r->finished; });
}

// First come, first served: a request that fits goes to the rank with the least reserved as its slot 0.
absl::Status Engine::Admit() {
  const int ranks = static_cast<int>(reserved_.size());
  while (!waiting_.empty()) {
    Running& next = *waiting_.front();
    next.rho = next.request.rho >= 0
                   ? next.request.rho % ranks
                   : static_cast<int>(std::min_element(reserved_.begin(), reserved_.end()) -
                                      reserved_.begin());
    for (int slot = 0; slot < ranks; ++slot) {
      if (reserved_[(slot + next.rho) % ranks] + next.reserved[slot] >
          options_.pool_bytes_per_rank) {
        return absl::OkStatus();
      }
    }
    for (int slot = 0; slot < ranks; ++slot)
      reserved_[(slot + next.rho) % ranks] += next.reserved[slot];
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return absl::OkStatus();
}

Slice Engine::MakeSlice(Running& request, int64_t tokens) {
  Slice slice;
  slice.sequence = request.id;
  slice.begin = request.done;
  if (request.decoding()) {
    slice.ids = {request.last_token};
  } else {
    const auto first = request.request.prompt.begin() + request.done;
    slice.ids.assign(first, first + tokens);
  }
  slice.scheme =
      slice.tokens() <= options_.replicated_limit ? Scheme::kReplicated : Scheme::kGatherQ;
  const int64_t prefix = options_.codec->traits().prefix_tokens;
  slice.mean_exchange = prefix > 0 && slice.begin < prefix && slice.end() >= prefix;
  slice.want = slice.end() >= request.prompt_tokens() ? Want::kLast : Want::kNothing;
  return slice;
}

StepPlan Engine::MakePlan() {
  StepPlan plan;
  plan.step = ++step_;
  plan.numerics = options_.numerics;
  plan.ops.swap(pending_ops_);
  int64_t budget = chunk_;
  for (auto& request : running_) {
    const int64_t tokens =
        request->decoding() ? 1 : std::min(budget, request->prompt_tokens() - request->done);
    if (tokens == 0) continue;
    if (!request->created) {
      plan.ops.push_back({SequenceOp::Kind::kCreate, request->id, 0, 0, request->rho});
      request->created = true;
    }
    if (!request->decoding()) budget -= tokens;
    plan.slices.push_back(MakeSlice(*request, tokens));
  }
  return plan;
}

absl::Status Engine::Step() {
  KVRING_RETURN_IF_ERROR(Admit());
  const StepPlan plan = MakePlan();
  absl::StatusOr<StepResult> result = leader_->Lead(plan);
  absl::Status status = result.ok() ? Deliver(plan, *result) : result.status();
  if (!status.ok()) {
    for (auto& request : running_) Finish(*request, status, "error");
    for (auto& request : waiting_) Finish(*request, status, "error");
    waiting_.clear();
  }
  std::erase_if(running_, [](const auto& r) { return r->finished; });
  return status;
}

absl::Status Engine::RunUntilIdle() {
  while (!idle()) KVRING_RETURN_IF_ERROR(Step());
  return absl::OkStatus();
}

absl::Status Engine::Deliver(const StepPlan& plan, const StepResult& result) {
  int64_t prompt_tokens = 0;
  for (const Slice& slice : plan.slices) {
    for (auto& request : running_) {
      if (request->id != slice.sequence) continue;
      const bool prefill = !request->decoding();
      request->done = slice.end();
      if (!prefill) continue;
      prompt_tokens += slice.tokens();
      if (request->request.on_prefill)
        request->request.on_prefill(request->done, request->prompt_tokens());
    }
  }
  for (const SliceOutput& output : result.outputs) {
    for (auto& request : running_) {
      if (request->id == output.sequence && !request->finished)
        KVRING_RETURN_IF_ERROR(DeliverToken(*request, output));
    }
  }
  AdaptChunk(prompt_tokens, result.seconds);
  return absl::OkStatus();
}

absl::Status Engine::DeliverToken(Running& request, const SliceOutput& output) {
  std::vector<float>& logits = logits_;
  logits.resize(static_cast<size_t>(options_.weights->config().vocab));
  KVRING_RETURN_IF_ERROR(leader_->transformer().Logits(output.hidden, 1, logits.data()));
  const int64_t position = request.done;  // of the token that is chosen now
  request.last_token = SampleToken(logits, request.request.sampling, request.id, position);
  const TokenEvent event{request.id, request.last_token, request.new_tokens++, logits};
  const bool go_on = !request.request.on_token || request.request.on_token(event);
  const auto& stop = request.request.stop;
  if (!go_on) {
    Finish(request, absl::CancelledError("cancelled"), "cancelled");
  } else if (std::find(stop.begin(), stop.end(), request.last_token) != stop.end()) {
    Finish(request, absl::OkStatus(), "stop");
  } else if (request.new_tokens >= request.request.max_new_tokens) {
    Finish(request, absl::OkStatus(), "length");
  }
  return absl::OkStatus();
}

void Engine::Finish(Running& request, const absl::Status& status, const std::string& reason) {
  if (request.finished) return;
  request.finished = true;
  if (request.created) pending_ops_.push_back({SequenceOp::Kind::kClose, request.id, 0, 0, 0});
  const bool admitted = std::any_of(running_.begin(), running_.end(),
                                    [&](const auto& r) { return r->id == request.id; });
  const int ranks = static_cast<int>(reserved_.size());
  for (int slot = 0; admitted && slot < ranks; ++slot)
    reserved_[(slot + request.rho) % ranks] -= request.reserved[slot];
  if (request.request.on_done) request.request.on_done(request.id, status, reason);
}

// Chunks grow or shrink so that a step takes about a second: results do not depend on it, the wait of others does. Never below
// a block a rank, since a rank without rows is idle.
void Engine::AdaptChunk(int64_t prompt_tokens, double seconds) {
  const int64_t unit = int64_t{options_.block_tokens} * leader_->comm().size();
  if (options_.chunk > 0 || prompt_tokens < chunk_ / 2 || seconds <= 0) return;
  const double ideal = static_cast<double>(prompt_tokens) * kStepSeconds / seconds;
  const int64_t rounded = static_cast<int64_t>(ideal) / unit * unit;
  const int64_t largest = std::max(unit, kMaxChunk / unit * unit);
  chunk_ = std::clamp(std::clamp(rounded, chunk_ / 2, chunk_ * 2), unit, largest);
}

absl::StatusOr<std::vector<RankReport>> Engine::Reports() {
  StepPlan plan;
  plan.step = ++step_;
  plan.numerics = options_.numerics;
  plan.report = true;
  KVRING_ASSIGN_OR_RETURN(StepResult result, leader_->Lead(plan));
  return result.reports;
}

}  // namespace kvring
