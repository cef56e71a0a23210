// SPDX-License-Identifier: Apache-2.0
// What a family of calibrated codecs needs of a text: two passes over the same windows, then tables. One calibration feeds
// any number of these from the same passes (calibrate.h).
//
// Not thread-safe; an implementation uses Threads() threads inside a call, with the same bits for any number of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/codec_tables.h"
#include "runtime/backward/backward_pass.h"
#include "runtime/base/status.h"

namespace kvring {

class CodecCalibrator {
 public:
  virtual ~CodecCalibrator() = default;

  // Pass 1, layers 0, 1, .. of every window: keys and values alone, as they come (rounded to fp16 inside).
  virtual void ObserveForward(const LayerGradients& layer) = 0;
  // After the last window of pass 1. NaN or infinity seen is reported here, with layer and channel.
  virtual absl::Status FinishForward() = 0;
  // Pass 2, layers last to first of the same windows in the same order, with gradients.
  virtual void ObserveBackward(const LayerGradients& layer) = 0;
  // Adds the tensors of all codecs, by table id. `progress` hears of the share done; it may be empty.
  virtual absl::Status Finish(CodecTables& tables,
                              const std::function<void(double share)>& progress) = 0;

  virtual const std::vector<std::string>& table_ids() const = 0;  // in the order asked for
  // What was unusual, e.g. a layer without gradient. After Finish.
  virtual const std::vector<std::string>& notes() const = 0;
  virtual int64_t bytes() const = 0;  // of what it holds now

 protected:
  // The first NaN or infinity of x, [rows][width] of a layer, becomes error_, unless there is one.
  void CheckFinite(const char* what, int layer, const float* x, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows * width && error_.ok(); ++i) {
      if (std::isfinite(x[i])) continue;
      error_ = absl::InvalidArgumentError(absl::StrCat(what, " of layer ", layer, ", channel ",
                                                       i % width, ", token ", i / width, " is ",
                                                       x[i], ": the model cannot be calibrated"));
    }
  }

  absl::Status error_;  // the first
};

}  // namespace kvring
