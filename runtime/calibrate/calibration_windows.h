// SPDX-License-Identifier: Apache-2.0
// Which windows of a text a calibration reads (kvquant spec 3.1), and which it leaves for a check of what it made.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace kvring {

struct CalibrationWindows {
  std::vector<int64_t> begins;     // first token of each
  std::vector<std::string> notes;  // fewer than asked for, texts left out
};

// `count` windows of `window` tokens at random offsets that depend on the seed alone, the same on every machine. A text
// that holds no more than `count` windows gives what it has, one behind the other. INVALID_ARGUMENT, with both numbers, when
// it does not hold one.
absl::StatusOr<CalibrationWindows> ChooseWindows(int64_t tokens, int64_t window, int64_t count,
                                                 uint64_t seed);

// Of several texts, one behind the other, `text_tokens` each: windows in proportion to their tokens (largest remainder), each
// at least one where `count` allows, none across two texts. Texts shorter than a window are left out, and noted; when all
// are, they are read as one. One text: as above.
absl::StatusOr<CalibrationWindows> ChooseWindows(std::span<const int64_t> text_tokens,
                                                 int64_t window, int64_t count, uint64_t seed);

// Windows that calibration windows of `window` tokens from `begins` do not touch, for a check on text that was not used.
struct HeldOutWindows {
  std::vector<int64_t> begins;
  int64_t window = 0;  // 0: nothing is left that would be long enough
};

// Up to `count` windows of at most `longest` tokens, in the middles of the longest stretches that are left, one text after the
// other (the longest text first). Where no stretch is that long, as long as the longest one is, but at least
// kLeastHeldOut tokens. Windows do not overlap each other.
inline constexpr int64_t kLeastHeldOut = 128;
HeldOutWindows ChooseHeldOut(std::span<const int64_t> text_tokens, std::span<const int64_t> begins,
                             int64_t window, int64_t longest, int64_t count);

}  // namespace kvring
