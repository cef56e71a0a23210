// SPDX-License-Identifier: Apache-2.0
// What an embedder uses: submit requests, drive steps, receive tokens. Rank 0 only. One thread drives an engine.
//
// Scheduling: every step carries one token of each decoding request and one chunk of prompt tokens, shared by the waiting
// prompts in order of arrival. Results of a request do not depend on its company or on how chunks are cut.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/executor.h"
#include "runtime/engine/sampler.h"

namespace kvring {

struct EngineOptions {
  std::shared_ptr<const Weights> weights;
  std::shared_ptr<const Codec> codec;
  VisibilityRule rule;
  int block_tokens = 64;
  int virtual_shards = 64;
  std::string numerics;
  int64_t chunk = 0;  // prompt tokens a step; 0: so many that a step takes about a second
  int64_t pool_bytes_per_rank = int64_t{1} << 40;
  int replicated_limit = 8;  // slices of so few tokens run on all ranks instead of being shared out
};

struct TokenEvent {
  SequenceId request = 0;
  int32_t token = 0;
  int64_t index = 0;              // of the new token: 0, 1, ..
  std::span<const float> logits;  // [vocab] it was chosen from
};

struct EngineRequest {
  std::vector<int32_t> prompt;  // not empty
  int64_t max_new_tokens = 0;
  SamplingParams sampling;
  std::vector<int32_t> stop;  // ids that end the answer; they are reported as the last token
  int rho = -1;               // rotation; -1: the rank with the least reserved
  std::function<void(int64_t done, int64_t total)>
      on_prefill;                                   // after each step with tokens of the prompt
  std::function<bool(const TokenEvent&)> on_token;  // false cancels
  std::function<void(SequenceId, const absl::Status&, const std::string& finish_reason)>
      on_done;  // exactly once
};

class Engine {
 public:
  static constexpr int64_t kMaxChunk = 1024;  // of chunks that are cut by time

  ~Engine();
  // `group`'s leader outlives the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        Executor* leader);

  // INVALID_ARGUMENT for a bad request; RESOURCE_EXHAUSTED with needed and available bytes when it can never fit. A request
  // that does not fit now waits until others are done; prompt and answer are reserved at admission.
  absl::StatusOr<SequenceId> Submit(EngineRequest request);
  void Cancel(SequenceId id);

  bool idle() const { return waiting_.empty() && running_.empty(); }
  // One step of all ranks. Errors are of the job: every request ends with it.
  absl::Status Step();
  absl::Status RunUntilIdle();

  // The largest bytes that a request of so many tokens takes on each rank slot.
  std::vector<int64_t> ReservedBytes(int64_t tokens) const;
  // What every rank says of itself now.
  absl::StatusOr<std::vector<RankReport>> Reports();
  int64_t chunk() const { return chunk_; }
  int64_t max_chunk() const;  // the largest chunk that any step of this engine can have

 private:
  struct Running;
  Engine(const EngineOptions& options, Executor* leader);
  absl::Status Admit();
  StepPlan MakePlan();
  Slice MakeSlice(Running& request, int64_t tokens);
  absl::Status Deliver(const StepPlan& plan, const StepResult& result);
  absl::Status DeliverToken(Running& request, const SliceOutput& output);
  void Finish(Running& request, const absl::Status& status, const std::string& reason);
  void AdaptChunk(int64_t prompt_tokens, double seconds);

  EngineOptions options_;
  Executor* leader_;
  int64_t chunk_ = 0;
  std::vector<float> logits_;  // of the token that is chosen; kept between steps
  SequenceId next_id_ = 1;
  uint64_t step_ = 0;
  std::list<std::unique_ptr<Running>> waiting_, running_;
  std::vector<int64_t> reserved_;        // [ranks] bytes of running requests
  std::vector<SequenceOp> pending_ops_;  // closes of finished sequences, for the next plan
};

}  // namespace kvring
