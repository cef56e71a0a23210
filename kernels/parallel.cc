// SPDX-License-Identifier: Apache-2.0
#include "kernels/parallel.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "hwy/cache_control.h"

namespace kvring {
namespace {

thread_local int t_threads = 0;  // 0: not set by this thread
thread_local bool t_in_task = false;
std::atomic<int> g_watch_microseconds{20};

// Returns when the word is no longer `old`.
void WaitWhile(const std::atomic<uint32_t>& word, uint32_t old) {
  using Clock = std::chrono::steady_clock;
  const int watch = g_watch_microseconds.load(std::memory_order_relaxed);
  if (watch > 0) {
    const auto end = Clock::now() + std::chrono::microseconds(watch);
    do {
      for (int i = 0; i < 16; ++i) {
        if (word.load(std::memory_order_acquire) != old) return;
        hwy::Pause();
      }
    } while (Clock::now() < end);
  }
  word.wait(old, std::memory_order_acquire);
}

// What is left to claim of one fork, in one word so that a late worker cannot take a task of the next fork for one of
// this: fork number (16 bits), tasks (24), next task (24).
struct Claim {
  static constexpr int kTaskBits = 24;
  static constexpr uint64_t kTaskMask = (uint64_t{1} << kTaskBits) - 1;
  static uint64_t Make(uint64_t fork, uint64_t tasks) {
    return fork << (2 * kTaskBits) | tasks << kTaskBits;
  }
  static uint64_t Tasks(uint64_t claim) { return claim >> kTaskBits & kTaskMask; }
  static uint64_t Next(uint64_t claim) { return claim & kTaskMask; }
};

// The workers of one forking thread.
class Workers {
 public:
  explicit Workers(int count) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~Workers() {
    stop_.store(true, std::memory_order_relaxed);
    Announce();
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int count() const { return static_cast<int>(threads_.size()); }

  // tasks <= kMostTasks.
  void Run(int64_t tasks, void (*run)(const void*, int64_t), const void* task) {
    run_ = run;
    task_ = task;
    done_.store(0, std::memory_order_relaxed);
    claim_.store(Claim::Make(++fork_ & 0xffff, static_cast<uint64_t>(tasks)),
                 std::memory_order_release);
    Announce();
    TakeTasks();
    for (;;) {
      const uint32_t done = done_.load(std::memory_order_acquire);
      if (done == static_cast<uint32_t>(tasks)) return;
      WaitWhile(done_, done);
    }
  }
  static constexpr int64_t kMostTasks = static_cast<int64_t>(Claim::kTaskMask);

 private:
  void Announce() {
    announced_.fetch_add(1, std::memory_order_release);
    announced_.notify_all();
  }

  // run_ and task_ belong to the claimed task's fork: it cannot end before this task has been counted.
  void TakeTasks() {
    uint64_t claim = claim_.load(std::memory_order_acquire);
    t_in_task = true;
    while (Claim::Next(claim) < Claim::Tasks(claim)) {
      if (!claim_.compare_exchange_weak(claim, claim + 1, std::memory_order_acq_rel)) continue;
      run_(task_, static_cast<int64_t>(Claim::Next(claim)));
      const auto tasks = static_cast<uint32_t>(Claim::Tasks(claim));
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == tasks) done_.notify_one();
      claim = claim_.load(std::memory_order_acquire);
    }
    t_in_task = false;
  }

  void Work() {
    SetThreads(1);
    uint32_t seen = 0;
    for (;;) {
      WaitWhile(announced_, seen);
      seen = announced_.load(std::memory_order_acquire);
      if (stop_.load(std::memory_order_relaxed)) return;
      TakeTasks();
    }
  }

  alignas(64) std::atomic<uint64_t> claim_{0};
  alignas(64) std::atomic<uint32_t> done_{0};
  alignas(64) std::atomic<uint32_t> announced_{0};
  std::atomic<bool> stop_{false};
  void (*run_)(const void*, int64_t) = nullptr;
  const void* task_ = nullptr;
  uint64_t fork_ = 0;
  std::vector<std::thread> threads_;
};

thread_local std::unique_ptr<Workers> t_workers;

}  // namespace

void SetThreads(int threads) {
  t_threads = threads < 1 ? 1 : threads;
  omp_set_num_threads(t_threads);
}

int Threads() {
  if (t_threads == 0) t_threads = omp_get_max_threads();
  return t_threads;
}

void SetWatchMicroseconds(int microseconds) {
  g_watch_microseconds.store(std::max(0, microseconds), std::memory_order_relaxed);
}

bool BindThread(std::span<const int> cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) {
    if (core < 0 || core >= CPU_SETSIZE) return false;
    CPU_SET(core, &set);
  }
  if (sched_setaffinity(0, sizeof(set), &set) != 0) return false;
  t_workers.reset();  // new ones come where this thread is
  return true;
}

namespace internal {

void RunTasks(int64_t tasks, void (*run)(const void* task, int64_t i), const void* task) {
  if (tasks <= 1 || t_in_task || Threads() == 1 || tasks > Workers::kMostTasks) {
    for (int64_t i = 0; i < tasks; ++i) run(task, i);
    return;
  }
  if (t_workers == nullptr || t_workers->count() != Threads() - 1)
    t_workers = std::make_unique<Workers>(Threads() - 1);
  t_workers->Run(tasks, run, task);
}

}  // namespace internal
}  // namespace kvring
