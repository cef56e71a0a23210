// SPDX-License-Identifier: Apache-2.0
#include "kernels/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace kvring {
namespace {

TEST(Parallel, EveryTaskRunsOnce) {
  for (int threads : {1, 2, 3, 8}) {
    SetThreads(threads);
    for (int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
      ParallelFor(tasks, [&](int64_t i) { ++runs[i]; });
      for (const auto& count : runs) EXPECT_EQ(count, 1);
    }
  }
  SetThreads(1);
}

TEST(Parallel, EachRankThreadHasItsOwnSetting) {
  SetThreads(3);
  std::thread other([] {
    SetThreads(1);
    std::thread::id self = std::this_thread::get_id();
    ParallelFor(16, [&](int64_t) { EXPECT_EQ(std::this_thread::get_id(), self); });
    EXPECT_EQ(Threads(), 1);
  });
  other.join();
  EXPECT_EQ(Threads(), 3);
  SetThreads(1);
}

TEST(Parallel, ATaskMayForkAgain) {
  SetThreads(2);
  std::atomic<int> runs = 0;
  ParallelFor(4, [&](int64_t) { ParallelFor(5, [&](int64_t) { ++runs; }); });
  EXPECT_EQ(runs, 20);
  SetThreads(1);
}

}  // namespace
}  // namespace kvring
