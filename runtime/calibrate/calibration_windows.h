// SPDX-License-Identifier: Apache-2.0
// Which windows of a text a calibration reads (kvquant spec 3.1).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace kvring {

struct CalibrationWindows {
  std::vector<int64_t> begins;  // first token of each
  std::string note;             // set when fewer than asked for
};

// `count` windows of `window` tokens at random offsets that depend on the seed alone, the same on every machine. A text
// that holds no more than `count` windows gives what it has, one behind the other. INVALID_ARGUMENT, with both numbers, when
// it does not hold one.
absl::StatusOr<CalibrationWindows> ChooseWindows(int64_t tokens, int64_t window, int64_t count,
                                                 uint64_t seed);

}  // namespace kvring
