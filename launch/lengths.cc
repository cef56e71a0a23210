// SPDX-License-Identifier: Apache-2.0
#include "launch/lengths.h"

#include <charconv>
#include <limits>

namespace kvring {

absl::StatusOr<int64_t> ParseLength(const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  int shift = 0;
  const bool suffixed = error == std::errc() && rest + 1 == end;
  if (suffixed) {
    const size_t unit = std::string("KMGTkmgt").find(*rest);
    if (unit != std::string::npos) shift = 10 * (static_cast<int>(unit % 4) + 1);
  }
  if (error != std::errc() || (rest != end && shift == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no length: use a number, or one with K, M or G as in 64K"));
  }
  if (value < 0 || value > (std::numeric_limits<int64_t>::max() >> shift)) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is out of range"));
  }
  return value << shift;
}

}  // namespace kvring
