// SPDX-License-Identifier: Apache-2.0
#include "kernels/parallel.h"

#include <gtest/gtest.h>

#include <sched.h>

#include <atomic>
#include <mutex>
#include <set>
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

// Several ranks as threads, each with workers of its own, at once: no task is lost, none runs for another rank.
TEST(Parallel, RanksForkAtOnce) {
  for (const int watch : {20, 0}) {
    SetWatchMicroseconds(watch);
    std::vector<std::thread> ranks;
    std::vector<int64_t> sums(4, 0);
    for (int64_t rank = 0; rank < 4; ++rank) {
      ranks.emplace_back([rank, &sums] {
        SetThreads(3);
        for (int fork = 0; fork < 200; ++fork) {
          std::atomic<int64_t> sum = 0;
          ParallelFor(7, [&](int64_t i) { sum += (i + 1) * (rank + 1); });
          sums[static_cast<size_t>(rank)] += sum;
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (int64_t rank = 0; rank < 4; ++rank) EXPECT_EQ(sums[rank], 200 * 28 * (rank + 1));
  }
  SetWatchMicroseconds(20);
}

std::set<int> Affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  std::set<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.insert(core);
  return cores;
}

// In a thread of its own, so that the other tests run where they may.
TEST(Parallel, BoundThreadsAndTheirWorkersRunWhereAsked) {
  std::thread([] {
    SetThreads(3);
    ParallelFor(8, [](int64_t) {});  // workers that exist already move too
    const std::set<int> allowed = Affinity();
    const int last = *allowed.rbegin();
    ASSERT_TRUE(BindThread(std::vector<int>{last}));
    EXPECT_EQ(Affinity(), std::set<int>{last});
    std::mutex mutex;
    std::set<std::set<int>> seen;
    ParallelFor(64, [&](int64_t) {
      const std::set<int> here = Affinity();
      const std::lock_guard<std::mutex> lock(mutex);
      seen.insert(here);
    });
    EXPECT_EQ(seen, std::set<std::set<int>>{{last}});
    EXPECT_FALSE(BindThread({}));
    EXPECT_FALSE(BindThread(std::vector<int>{-1}));
    EXPECT_EQ(Affinity(), std::set<int>{last});
    ASSERT_TRUE(BindThread(std::vector<int>(allowed.begin(), allowed.end())));
    EXPECT_EQ(Affinity(), allowed);
  }).join();
}

}  // namespace
}  // namespace kvring
