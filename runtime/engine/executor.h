// SPDX-License-Identifier: Apache-2.0
// Runs step plans on one rank. Execution is dumb: what to do is in the plan, what comes out is data.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "runtime/engine/rank_kv.h"
#include "runtime/engine/rank_report.h"
#include "runtime/engine/step_plan.h"
#include "runtime/engine/transformer.h"

namespace kvring {

struct ExecutorOptions {
  std::shared_ptr<const Weights> weights;
  std::shared_ptr<const Codec> codec;
  VisibilityRule rule;
  int block_tokens = 64;
  int virtual_shards = 64;
  int64_t pool_bytes = int64_t{1} << 40;
  bool huge_pages = true;                      // of the system, for a large KV cache
  absl::Duration timeout = absl::Seconds(30);  // of one exchange between ranks
  AttentionForm attention;
  std::string numerics;  // NumericsId; checked against every plan's
};

// Rows that a slice's `want` asked for; on rank 0 alone.
struct SliceOutput {
  SequenceId sequence = 0;
  int64_t first_position = 0;
  int64_t rows = 0;
  std::vector<float>
      hidden;  // [rows][hidden] after the output norm: Transformer::Logits makes logits of it
};

struct StepResult {
  std::vector<SliceOutput> outputs;  // slices with want != kNothing, in plan order; on rank 0
  std::vector<RankReport> reports;   // [ranks] when the plan asked for them
  double seconds = 0;
};

class Executor {
 public:
  // comm outlives the executor.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const ExecutorOptions& options,
                                                          Communicator* comm);

  // Every rank runs the same plan. An error aborts the communicator, so that the other ranks end their step too.
  absl::StatusOr<StepResult> Run(const StepPlan& plan, ActivationTap* tap = nullptr);

  // Rank 0 sends its plan, runs it and returns what came out.
  absl::StatusOr<StepResult> Lead(const StepPlan& plan, ActivationTap* tap = nullptr);
  // The other ranks: receive and run plans until one says it is the last. Waits for the next plan in slices of the
  // timeout for as long as rank 0 lives; idle_limit bounds the whole wait.
  absl::Status Follow(absl::Duration idle_limit);

  const Transformer& transformer() const { return transformer_; }
  const Codec& codec() const { return *options_.codec; }
  RankKv& kv() { return *kv_; }
  Communicator& comm() { return *comm_; }

 private:
  Executor(const ExecutorOptions& options, Communicator* comm)
      : options_(options), comm_(comm), transformer_(*options.weights) {}
  absl::StatusOr<StepResult> RunChecked(const StepPlan& plan, ActivationTap* tap);
  absl::Status CheckPlan(const StepPlan& plan) const;
  absl::Status Report(StepResult& result);
  absl::Status Collect(const StepPlan& plan, const Batch& batch, std::span<const float> hidden,
                       StepResult& result);

  ExecutorOptions options_;
  Communicator* comm_;
  Transformer transformer_;
  std::unique_ptr<RankKv> kv_;
};

}  // namespace kvring
