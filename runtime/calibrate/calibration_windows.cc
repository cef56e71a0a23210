// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/calibration_windows.h"

#include <algorithm>

namespace kvring {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014).
class Generator {
 public:
  explicit Generator(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

}  // namespace

absl::StatusOr<CalibrationWindows> ChooseWindows(int64_t tokens, int64_t window, int64_t count,
                                                 uint64_t seed) {
  if (window < 2 || count < 1) {
    return absl::InvalidArgumentError(absl::StrCat("cannot calibrate on ", count, " windows of ",
                                                   window, " tokens: at least 1 of 2"));
  }
  const int64_t whole = tokens / window;
  if (whole < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", tokens, " tokens, fewer than one window of ", window));
  }
  CalibrationWindows windows;
  if (whole < count || tokens == window * count) {
    for (int64_t i = 0; i < std::min(whole, count); ++i) windows.begins.push_back(i * window);
    if (whole < count) {
      windows.note = absl::StrCat("the text has ", tokens, " tokens: ", whole, " windows of ",
                                  window, " instead of ", count);
    }
    return windows;
  }
  // The remainder's bias is below 2^-40 for any text that fits a machine.
  Generator generator(seed);
  const auto places = static_cast<uint64_t>(tokens - window + 1);
  for (int64_t i = 0; i < count; ++i) {
    windows.begins.push_back(static_cast<int64_t>(generator.Next() % places));
  }
  return windows;
}

}  // namespace kvring
