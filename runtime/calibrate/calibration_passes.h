// SPDX-License-Identifier: Apache-2.0
// The passes of a calibration over its windows, with progress by estimated cost: forward, with gradients, and the fit.
//
// Not thread-safe; the model's work inside uses Threads() threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/codec_tables.h"
#include "runtime/backward/backward_pass.h"
#include "runtime/base/status.h"
#include "runtime/calibrate/codec_calibrator.h"

namespace kvring {

using CodecCalibrators = std::vector<std::unique_ptr<CodecCalibrator>>;

class CalibrationPasses {
 public:
  // gradients: Backward will be called; else Again. What the references name outlives the passes; progress may be empty.
  CalibrationPasses(std::span<const int32_t> ids, int64_t window,
                    const std::vector<int64_t>& begins, int layers, bool gradients,
                    const std::function<void(double share)>& progress);

  // Pass 1 of every calibrator, its end included.
  absl::Status Forward(BackwardPass& pass, const CodecCalibrators& calibrators);
  // Pass 2. Returns the mean loss of the windows, nats.
  absl::StatusOr<double> Backward(BackwardPass& pass, const CodecCalibrators& calibrators);
  // Pass 2 of calibrators that need no gradients: they get null ones, and layers in rising order.
  absl::Status Again(BackwardPass& pass, const CodecCalibrators& calibrators);
  absl::Status Fit(const CodecCalibrators& calibrators, CodecTables& tables);

  // XXH3-128 of the token ids of all windows, little-endian int32, hex.
  std::string TextHash() const;

 private:
  std::span<const int32_t> Window(int64_t begin) const;
  // `done` layers of a window whose whole costs `cost`.
  void TellLayer(int done, double cost) const { Tell(cost * done / layers_); }
  void Tell(double more) const;
  void Finished(double cost);

  std::span<const int32_t> ids_;
  int64_t window_;
  const std::vector<int64_t>& begins_;
  int layers_;
  const std::function<void(double share)>& progress_;
  double total_ = 1.0, done_ = 0.0;  // windows read forward
};

}  // namespace kvring
