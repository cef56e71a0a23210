// SPDX-License-Identifier: Apache-2.0
// Tables of `tc` from activations and gradients (rotated-and-transform 4). Pass 1: means of keys before RoPE and of values.
// Pass 2: second moments of centred keys after RoPE, of values and of gradients, per layer, head and side; keys and their
// gradients are turned to positions spread evenly over the served context, whatever the windows' length. Then a basis a side,
// and with several texts a check: each text is coded with the basis of the others, and a side that a plain rotation would
// serve better keeps the rotation.
//
// Memory: (texts + 1) x 2 sums of head_dim^2 doubles a side; none of it grows with the text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "kernels/codec/tc_model.h"
#include "runtime/calibrate/codec_calibrator.h"

namespace kvring {

struct TcCalibratorOptions {
  KvShape shape;
  std::vector<const RopeTable*> rope;  // [layers], outlive the calibrator
  int64_t window = 0;                  // tokens of a window, positions 0..window-1
  int64_t served_context = 0;          // positions that keys are turned to: 0..served_context-1
  std::vector<int>
      text_of_window;  // [windows] any numbers: windows of one text are coded together when it is left out
  // Tables whose metric, weights and choice of rotations are kept; pass 2 comes without gradients then. Null: none.
  std::shared_ptr<const TcModel> keep;
};

// Where a token is turned to: row of window w out of `windows`. The same as `row` when the context is the window.
int64_t ServedPosition(int64_t row, int64_t w, int64_t window, int64_t windows, int64_t served);

class TcCalibrator : public CodecCalibrator {
 public:
  // "tc", "tc3", "tc@2.3", with options: a codec whose tables this makes.
  static bool Makes(const std::string& codec);
  // INVALID_ARGUMENT names the limit that is broken.
  static absl::StatusOr<std::unique_ptr<TcCalibrator>> Create(const TcCalibratorOptions& options);
};

}  // namespace kvring
