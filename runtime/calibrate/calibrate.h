// SPDX-License-Identifier: Apache-2.0
// Calibration of codecs on a text: windows are drawn, read once forward and once with gradients, and every kind of
// calibrated codec takes what it needs from the same two passes. The unquantized model, in f32. Or of tc alone, forward only:
// the covariance of other texts with the metric of an artifact that exists.
//
// Deterministic: the same model, text and options give the same bytes, on any number of threads (SetThreads).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvstore/calibration_file.h"
#include "runtime/base/status.h"
#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"

namespace kvring {

// Shares of the whole, by estimated cost, so that time left can be told from time gone.
using CalibrationProgress = std::function<void(double share)>;

struct CalibrateOptions {
  std::shared_ptr<const GgufFile> file;
  ModelConfig config;
  std::vector<std::string> codecs;  // as typed; names with the same tables are one
  int64_t window = 2048;
  int64_t windows = 16;
  uint64_t seed = 0;
  // For codecs whose tables depend on it. 0: the window; of an update, what the artifact was made for.
  int64_t served_context = 0;
  int block_tokens = 64;
  std::vector<std::string> texts;  // names, for the artifact
  // Tokens of each text, in their order within the ids: codecs that check themselves on a text they left out need to know.
  // Empty: one text.
  std::vector<int64_t> text_tokens;
};

struct CalibrationResult {
  Calibration calibration;
  std::vector<std::string> notes;
  std::vector<int64_t> begins;  // of the windows that were read
  double forward_s = 0, backward_s = 0, fit_s = 0;
  int64_t calibrator_bytes = 0;  // most that the calibrators held
};

// Everything that can be refused before the long work: codecs, windows, the text's length, the trained context.
absl::Status CheckCalibrate(const CalibrateOptions& options, int64_t tokens);

// ids: of all texts, one behind the other. Loads the weights itself.
absl::StatusOr<CalibrationResult> Calibrate(const CalibrateOptions& options,
                                            std::span<const int32_t> ids,
                                            const CalibrationProgress& progress);

// tc's mean, covariance, basis and variances from other texts; the metric of each side stays (it is in the basis: A A^T), and
// so do rotations where the calibration chose them (with their balance: a rotation does not hold the metric that it came
// from) and the tables of other codecs. What the texts say replaces what the artifact says: name its own texts again to keep
// them. `from` fits the model (CheckCalibration); options.codecs is not looked at. INVALID_ARGUMENT: it has no tc tables.
absl::Status CheckUpdate(const CalibrateOptions& options, const Calibration& from, int64_t tokens);
absl::StatusOr<CalibrationResult> UpdateCovariance(const CalibrateOptions& options,
                                                   const Calibration& from,
                                                   std::span<const int32_t> ids,
                                                   const CalibrationProgress& progress);

}  // namespace kvring
