// SPDX-License-Identifier: Apache-2.0
// Work split over the threads of this rank. The problem fixes the tasks; threads only decide who runs one, so results
// never depend on the thread count.
//
// Each thread that forks has workers of its own (a rank is a thread, so ranks do not wait for each other's work). They
// start with the first fork and end with their owner. Between forks a worker watches for the next one for a short while
// and then sleeps in the kernel; nothing is allocated.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace kvring {

// Threads that ParallelFor and the matmul library use when called from this thread (each rank thread has its own).
void SetThreads(int threads);
int Threads();

// How long waiting threads of this process watch before they sleep, in microseconds, about; 0: they sleep at once, which
// is right when there are more threads than cores. Default 20: a sleep and a wake-up cost about half of that.
void SetWatchMicroseconds(int microseconds);

// This thread, the workers of its forks and other threads that it starts from now on run on these cores alone (numbers of
// the operating system). Memory is placed by who touches it first, so a rank binds its thread before it takes any. False,
// and nothing changes, when the system refuses; it does for an empty list.
bool BindThread(std::span<const int> cores);

namespace internal {
void RunTasks(int64_t tasks, void (*run)(const void* task, int64_t i), const void* task);
}  // namespace internal

// Runs task(i) for i in [0, tasks), each once, in any order, and waits. Tasks must not throw. Inside a task it runs on the
// calling thread alone.
template <class Task>
void ParallelFor(int64_t tasks, const Task& task) {
  internal::RunTasks(
      tasks, [](const void* self, int64_t i) { (*static_cast<const Task*>(self))(i); },
      std::addressof(task));
}

}  // namespace kvring
