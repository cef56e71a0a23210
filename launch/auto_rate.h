// SPDX-License-Identifier: Apache-2.0
// `--kv tc@auto`: the largest rate of tc whose cache fits (rotated-and-transform 4). The choice is rank 0's alone, all ranks are
// told; here is what it needs, without any communication.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kvstore/calibration_file.h"
#include "runtime/base/status.h"

namespace kvring {

// Rates that are tried, in tenths of a bit.
inline constexpr int kLeastTenths = 10, kMostTenths = 60;

// "tc@auto", options or not.
bool IsAutoRate(const std::string& spec);
// "tc@auto:adapt" at 27 is "tc@2.7:adapt"; other specs as they are.
std::string WithRate(const std::string& spec, int tenths);

// Of [kLeastTenths, kMostTenths] the largest that fits, by bisection: what fits at a rate fits at every smaller one, since
// water-filling only adds bits. kLeastTenths - 1: none does. Errors of `fits` end the search.
absl::StatusOr<int> LargestRate(const std::function<absl::StatusOr<bool>(int tenths)>& fits);

// What was chosen, for people and scripts.
struct AutoRate {
  std::string asked;                // as typed; empty: the codec was named
  int tenths = 0;                   // bits a coefficient
  int64_t context = 0;              // tokens that it fits for
  int64_t available_bytes = 0;      // of each rank
  double bits = 0.0;                // allocated, per element
  double bytes_per_token = 0.0;     // of pages, all ranks together
  std::optional<HeldOut> held_out;  // of the artifact that tc's tables are from

  // What it is expected to cost; none when the artifact does not know.
  std::optional<HeldOutPoint> Cost() const;
  // "held-out text of the calibration (..)", "unknown: the artifact has none"
  std::string Source() const;
  // "tc@auto: 2.7 bits a coefficient, .."
  std::string Line() const;
};

}  // namespace kvring
