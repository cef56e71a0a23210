// SPDX-License-Identifier: Apache-2.0
// What fresh tables of `tc` cost on text that they were not made from: the real runtime on windows that the calibration left,
// f32, everything read packed (visibility `teacher`). Stored in the artifact, so that `run --kv tc@auto` can say what a rate
// costs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvstore/calibration_file.h"
#include "launch/model_options.h"
#include "runtime/base/status.h"
#include "runtime/eval/evaluator.h"

namespace kvring {

// Windows that are measured, and their tokens (those of a calibration window, if that is shorter): the noise of a mean of two is about 5 %, and each of the
// HeldOutRates() costs two readings.
inline constexpr int64_t kHeldOutWindows = 2, kHeldOutTokens = 2048;

// Bits a coefficient, ascending: any rate that tc@BITS has lies between two.
std::span<const double> HeldOutRates();

// What a calibration read: of these texts, one behind the other, windows from these tokens on.
struct ReadText {
  std::span<const int32_t> ids;
  std::span<const int64_t> text_tokens, begins;
  int64_t window = 0;
};

struct HeldOutResult {
  std::optional<HeldOut> held_out;  // none: the texts have nothing left, as `note` says
  std::string note;                 // also of windows shorter than those asked for
};

// tables: with tc, fitting the model. Loads the weights itself.
absl::StatusOr<HeldOutResult> MeasureHeldOut(const OpenModel& model,
                                             std::shared_ptr<const CodecTables> tables,
                                             int block_tokens, int threads, const ReadText& text,
                                             const EvalProgress& progress);

}  // namespace kvring
