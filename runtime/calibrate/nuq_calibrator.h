// SPDX-License-Identifier: Apache-2.0
// nuq's tables from activations and gradients (kvquant spec 3): the first pass collects the tails of every key channel, the
// second weighted histograms of normalized elements, per layer, side and set of options. Memory depends on the codecs and
// the model; of the calibration text only the tails are kept, a share f of one side's elements.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "runtime/calibrate/codec_calibrator.h"

namespace kvring {

struct NuqCalibratorOptions {
  KvShape shape;
  std::vector<const RopeTable*> rope;  // [layers], outlive the calibrator
  // "nuq3-1%", "nuq2:qnorm". Options that act at run time alone (exact, token, ..) are passed over: names with the same
  // tables are one.
  std::vector<std::string> codecs;
  int64_t window = 0;  // tokens of a window, positions 0..window-1; at least a block
  int64_t windows = 0;
};

class NuqCalibrator : public CodecCalibrator {
 public:
  // INVALID_ARGUMENT names the codec that is none of nuq, the option it does not have, or the limit that is broken.
  static absl::StatusOr<std::unique_ptr<NuqCalibrator>> Create(const NuqCalibratorOptions& options);
};

}  // namespace kvring
