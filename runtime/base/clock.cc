// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/clock.h"

namespace kvring {

absl::Status CheckDeadline(Deadline deadline, const std::string& what) {
  if (deadline == absl::InfiniteFuture()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": a wait without an end was asked for"));
  }
  if (!Expired(deadline)) return absl::OkStatus();
  const absl::Duration late = absl::Now() - deadline;
  return absl::DeadlineExceededError(
      absl::StrCat(what, ": deadline passed ", absl::FormatDuration(late), " ago"));
}

}  // namespace kvring
