// SPDX-License-Identifier: Apache-2.0
// The ranks that run one codec under evaluation, and the steps that both tasks share.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/rank_group.h"
#include "runtime/eval/evaluator.h"

namespace kvring {

// Ranks as threads with the cache that `spec` names. Errors are those of MakeCodec and of the ranks.
absl::StatusOr<std::unique_ptr<RankGroup>> MakeEvalGroup(const EvalOptions& options,
                                                         const std::string& spec);

// A codec under evaluation: its ranks, and what their reports add up to.
struct EvalSubject {
  std::string spec;  // as asked for
  std::string kv;    // its canonical name
  double bits = 0;   // allocated, per element of a full page
  std::unique_ptr<RankGroup> group;
  double page_bytes = 0;          // of all reports
  std::vector<LayerDrift> drift;  // of all reports, by layer

  void Count(const std::vector<RankReport>& reports);
};
absl::StatusOr<EvalSubject> MakeEvalSubject(const EvalOptions& options, const std::string& spec);

// Tokens [begin, end) of `ids`, whose first `begin` are in the cache already, as a slice of `sequence`.
Slice MakeEvalSlice(const Codec& codec, SequenceId sequence, std::span<const int32_t> ids,
                    int64_t begin, int64_t end, Want want);

}  // namespace kvring
