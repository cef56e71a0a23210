// SPDX-License-Identifier: Apache-2.0
// Work split over the threads of this rank. The problem fixes the tasks; threads only decide who runs one, so results
// never depend on the thread count.
#pragma once

#include <cstdint>
#include <functional>

namespace kvring {

// Threads that ParallelFor and the matmul library use when called from this thread (each rank thread has its own).
void SetThreads(int threads);
int Threads();

// Runs task(i) for i in [0, tasks), each once, in any order, and waits. Tasks must not throw.
void ParallelFor(int64_t tasks, const std::function<void(int64_t)>& task);

}  // namespace kvring
