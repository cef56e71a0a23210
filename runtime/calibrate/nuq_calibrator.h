// SPDX-License-Identifier: Apache-2.0
// nuq's tables from activations and gradients (kvquant spec 3): the first pass collects the tails of every key channel, the
// second weighted histograms of normalized elements, per layer, side and set of options. Memory depends on the codecs and
// the model; of the calibration text only the tails are kept, a share f of one side's elements.
//
// Not thread-safe; uses Threads() threads inside a call, with the same bits for any number of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "kernels/codec_tables.h"
#include "runtime/base/status.h"
#include "runtime/backward/backward_pass.h"

namespace kvring {

struct NuqCalibratorOptions {
  KvShape shape;
  std::vector<const RopeTable*> rope;  // [layers], outlive the calibrator
  std::vector<std::string>
      codecs;          // "nuq3-1%", "nuq2:qnorm": run-time options (exact, token, ..) are ignored
  int64_t window = 0;  // tokens of a window, positions 0..window-1
  int64_t windows = 0;
};

class NuqCalibrator {
 public:
  // INVALID_ARGUMENT names the codec that is none of nuq, or the limit that is broken.
  static absl::StatusOr<std::unique_ptr<NuqCalibrator>> Create(const NuqCalibratorOptions& options);
  virtual ~NuqCalibrator() = default;

  // Pass 1, every layer of every window: keys and values as they come (rounded to fp16 inside).
  virtual void ObserveTails(const LayerGradients& layer) = 0;
  // After the last window of pass 1. NaN or infinity seen is reported here, with layer and channel.
  virtual absl::Status FinishTails() = 0;
  // Pass 2, the same windows in the same order.
  virtual void ObserveWeighted(const LayerGradients& layer) = 0;
  // Tensors of all codecs, by table id.
  virtual absl::Status Finish(CodecTables& tables) = 0;
  // What was unusual, e.g. a layer without gradient. After Finish.
  virtual const std::vector<std::string>& notes() const = 0;
  virtual int64_t bytes() const = 0;
};

}  // namespace kvring
