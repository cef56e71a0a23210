// SPDX-License-Identifier: Apache-2.0
// Ranks as threads for tests: one body, run once per rank, each with its own communicator.
#pragma once

#include <functional>
#include <vector>

#include "dist/communicator.h"

namespace kvring {

// A point in time that a healthy operation reaches by far, even under sanitizers on a busy machine.
Deadline TestDeadline();

// Runs body on ranks 0..n-1 and waits for all. A rank that returns destroys its communicator at once: it has left.
// Each rank computes with one thread. The ranks' answers, by rank.
std::vector<absl::Status> RunRanks(int n, const std::function<absl::Status(Communicator&)>& body);

}  // namespace kvring
