// SPDX-License-Identifier: Apache-2.0
#include "kernels/parallel.h"

#include <omp.h>

namespace kvring {
namespace {

thread_local int t_threads = 0;  // 0: not set by this thread

}  // namespace

void SetThreads(int threads) {
  t_threads = threads < 1 ? 1 : threads;
  omp_set_num_threads(t_threads);
}

int Threads() {
  if (t_threads == 0) t_threads = omp_in_parallel() ? 1 : omp_get_max_threads();
  return t_threads;
}

void ParallelFor(int64_t tasks, const std::function<void(int64_t)>& task) {
  if (tasks <= 1 || Threads() == 1 || omp_in_parallel()) {
    for (int64_t i = 0; i < tasks; ++i) task(i);
    return;
  }
  const int threads = static_cast<int>(tasks < Threads() ? tasks : Threads());
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (int64_t i = 0; i < tasks; ++i) task(i);
}

}  // namespace kvring
