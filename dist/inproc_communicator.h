// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process. Parts are copied from sender to receiver directly; whoever posts second copies, so an
// operation finishes without anyone waiting in a particular order. Waiting sleeps on a condition variable.
//
// A rank whose communicator is destroyed has left: operations that still need it fail with UNAVAILABLE on all others.
#pragma once

#include <memory>
#include <vector>

#include "dist/communicator.h"

namespace kvring {

// Rank r is element r. n in [1, 4096]; fewer than 1 gives an empty vector. Each may move to its own thread.
std::vector<std::unique_ptr<Communicator>> MakeInprocCommunicators(int n);

}  // namespace kvring
