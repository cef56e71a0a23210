// SPDX-License-Identifier: Apache-2.0
// What every communicator must do, as bodies that all ranks run together. The in-process test runs them on threads, the
// MPI test on the processes of one job. Data are integers, so equality is exact.
#pragma once

#include <span>

#include "dist/communicator.h"

namespace kvring {

struct ConformanceRow {
  const char* name;
  absl::Status (*body)(Communicator& comm);  // INTERNAL says what is wrong
};

std::span<const ConformanceRow> AllConformance();

}  // namespace kvring
