// SPDX-License-Identifier: Apache-2.0
// What `kvring eval` says of either task: a table for people, JSON for scripts.
#pragma once

#include <string>
#include <vector>

#include "launch/calibration_lookup.h"
#include "runtime/eval/evaluator.h"
#include "runtime/eval/retrieval.h"

namespace kvring {

// What both tasks' JSON begins with.
struct EvalHead {
  std::string model, text, visibility, numerics;
  std::vector<UsedCalibration> calibration;
};

void PrintEvalTable(const std::vector<EvalRow>& rows);
absl::Status WriteEvalJson(const EvalHead& head, const EvalOptions& options,
                           const std::vector<EvalRow>& rows, const std::string& path);

void PrintRetrievalTable(const RetrievalResult& result);
absl::Status WriteRetrievalJson(const EvalHead& head, const NeedleOptions& options,
                                const std::vector<NeedleText>& texts, const RetrievalResult& result,
                                const std::string& path);

}  // namespace kvring
