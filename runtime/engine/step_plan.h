// SPDX-License-Identifier: Apache-2.0
// Plans are data: what every rank does in one step. The wire and log form is proto/kvring/v1/step_plan.proto.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace kvring {

using SequenceId = uint64_t;

enum class Scheme : uint8_t { kReplicated, kGatherQ };
enum class Want : uint8_t { kNothing, kLast, kAll };  // rows whose logits rank 0 needs

struct SequenceOp {
  enum class Kind : uint8_t { kCreate, kFork, kTruncate, kClose };
  Kind kind = Kind::kCreate;
  SequenceId sequence = 0;
  SequenceId source = 0;  // kFork
  int64_t length = 0;     // kFork, kTruncate
  int rho = 0;            // kCreate
};

struct Slice {
  SequenceId sequence = 0;
  int64_t begin = 0;         // position of ids[0]; the sequence's length so far
  std::vector<int32_t> ids;  // tokens to run
  Scheme scheme = Scheme::kReplicated;
  bool mean_exchange = false;  // the slice completes the codec's prefix
  Want want = Want::kNothing;

  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
  int64_t end() const { return begin + tokens(); }
};

struct StepPlan {
  uint64_t epoch = 0;
  uint64_t step = 0;
  std::string numerics;         // NumericsId of rank 0; a rank with another one refuses
  std::vector<SequenceOp> ops;  // done in order, before the slices
  std::vector<Slice> slices;    // at most one a sequence
  bool last = false;
  bool report = false;  // after the step every rank says what it holds (RankReport)
};

std::string SerializePlan(const StepPlan& plan);
absl::StatusOr<StepPlan> ParsePlan(const std::string& bytes);

}  // namespace kvring
