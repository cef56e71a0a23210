// SPDX-License-Identifier: Apache-2.0
// Time: deadlines are points in time (absl::Time), spans are absl::Duration. Measured spans use the steady clock.
#pragma once

#include <chrono>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/base/status.h"

namespace kvring {

// The point at which a wait gives up. Waits refuse absl::InfiniteFuture(): nothing waits without an end.
using Deadline = absl::Time;

inline Deadline DeadlineAfter(absl::Duration span) { return absl::Now() + span; }
inline bool Expired(Deadline deadline) { return absl::Now() >= deadline; }

// Time left, never negative.
inline absl::Duration TimeLeft(Deadline deadline) {
  const absl::Duration left = deadline - absl::Now();
  return left > absl::ZeroDuration() ? left : absl::ZeroDuration();
}

// DEADLINE_EXCEEDED naming `what` when the deadline has passed, INVALID_ARGUMENT when it never would.
absl::Status CheckDeadline(Deadline deadline, const std::string& what);

// Seconds since construction or Restart. Immune to changes of the wall clock.
class Stopwatch {
 public:
  void Restart() { start_ = std::chrono::steady_clock::now(); }
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace kvring
