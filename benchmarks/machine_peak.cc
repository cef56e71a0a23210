// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/machine_peak.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

#include "benchmarks/machine_peak_dot.h"
#include "runtime/base/clock.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "benchmarks/machine_peak.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Twelve independent chains: enough for latency 4 to 6 at two a cycle. Returns the number of multiply-adds.
double FmaLoopImpl(int64_t steps, float* sink) {
  const hn::ScalableTag<float> d;
  const auto a = hn::Set(d, 0.999f), b = hn::Set(d, 1e-3f);
  // Each chain starts elsewhere: a compiler merges chains that are the same.
  auto c0 = hn::Set(d, 0.0f), c1 = hn::Set(d, 0.1f), c2 = hn::Set(d, 0.2f), c3 = hn::Set(d, 0.3f);
  auto c4 = hn::Set(d, 0.4f), c5 = hn::Set(d, 0.5f), c6 = hn::Set(d, 0.6f), c7 = hn::Set(d, 0.7f);
  auto c8 = hn::Set(d, 0.8f), c9 = hn::Set(d, 0.9f), c10 = hn::Set(d, 1.0f), c11 = hn::Set(d, 1.1f);
  for (int64_t i = 0; i < steps; ++i) {
    c0 = hn::MulAdd(c0, a, b), c1 = hn::MulAdd(c1, a, b), c2 = hn::MulAdd(c2, a, b);
    c3 = hn::MulAdd(c3, a, b), c4 = hn::MulAdd(c4, a, b), c5 = hn::MulAdd(c5, a, b);
    c6 = hn::MulAdd(c6, a, b), c7 = hn::MulAdd(c7, a, b), c8 = hn::MulAdd(c8, a, b);
    c9 = hn::MulAdd(c9, a, b), c10 = hn::MulAdd(c10, a, b), c11 = hn::MulAdd(c11, a, b);
  }
  const auto sum =
      hn::Add(hn::Add(hn::Add(c0, c1), hn::Add(c2, c3)), hn::Add(hn::Add(c4, c5), hn::Add(c6, c7)));
  *sink += hn::GetLane(hn::Add(sum, hn::Add(hn::Add(c8, c9), hn::Add(c10, c11))));
  return 12.0 * static_cast<double>(steps) * static_cast<double>(hn::Lanes(d));
}

float ReadLoopImpl(const float* x, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (int64_t i = 0; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::Add(s0, hn::Load(d, x + i)), s1 = hn::Add(s1, hn::Load(d, x + i + lanes));
    s2 = hn::Add(s2, hn::Load(d, x + i + 2 * lanes)),
    s3 = hn::Add(s3, hn::Load(d, x + i + 3 * lanes));
  }
  return hn::GetLane(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {
namespace {

HWY_EXPORT(FmaLoopImpl);
HWY_EXPORT(ReadLoopImpl);

// CPU time of this thread: what others do on the machine meanwhile does not count.
double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Work>
double BestRate(int tries, const Work& work) {
  double best = 0;
  for (int i = 0; i < tries; ++i) {
    const double start = ThreadSeconds();
    const double done = work();
    const double seconds = ThreadSeconds() - start;
    best = std::max(best, done / seconds);
  }
  return best;
}

volatile float g_sink;  // what the loops give, so that they are not dropped

struct FreeMemory {
  void operator()(float* p) const { std::free(p); }
};
using Floats = std::unique_ptr<float, FreeMemory>;

// `bytes` of ones, a multiple of a huge page, on huge pages where the system gives them.
Floats HugeOnes(int64_t bytes) {
  constexpr size_t kHuge = 2 << 20;
  Floats x(static_cast<float*>(std::aligned_alloc(kHuge, static_cast<size_t>(bytes))));
  madvise(x.get(), static_cast<size_t>(bytes), MADV_HUGEPAGE);
  std::fill_n(x.get(), bytes / static_cast<int64_t>(sizeof(float)), 1.0f);
  return x;
}

}  // namespace

double PeakBf16Flops() {
  float sink = 0;
  const double rate = BestRate(20, [&] { return 2 * Bf16DotLoop(1 << 20, &sink); });
  g_sink = sink;
  return rate;
}

double PeakInt8Ops() {
  float sink = 0;
  const double rate = BestRate(20, [&] { return 2 * Int8DotLoop(1 << 20, &sink); });
  g_sink = sink;
  return rate;
}

double PeakReadBytesAll(int threads, int64_t bytes) {
  constexpr int64_t kHuge = int64_t{2} << 20;
  const int64_t each = std::max(bytes / threads / kHuge, int64_t{1}) * kHuge;
  std::vector<Floats> parts(static_cast<size_t>(threads));
  std::vector<float> sums(static_cast<size_t>(threads));
  // Each thread touches its own part first: on its own memory node where there are several.
  const auto on_all = [&](const auto& work) {
    std::vector<std::thread> pool;
    for (int t = 0; t < threads; ++t) pool.emplace_back([&work, t] { work(t); });
    for (std::thread& thread : pool) thread.join();
  };
  on_all([&](int t) { parts[t] = HugeOnes(each); });
  double best = 0;
  for (int i = 0; i < 7; ++i) {
    const Stopwatch watch;
    on_all([&](int t) {
      sums[t] = HWY_DYNAMIC_DISPATCH(ReadLoopImpl)(parts[t].get(), each / sizeof(float));
    });
    best = std::max(best, static_cast<double>(each * threads) / watch.Seconds());
  }
  for (const float sum : sums) g_sink = sum;
  return best;
}

double PeakFlops() {
  float sink = 0;
  const double rate =
      BestRate(20, [&] { return 2 * HWY_DYNAMIC_DISPATCH(FmaLoopImpl)(1 << 20, &sink); });
  g_sink = sink;
  return rate;
}

double PeakReadBytes(int64_t bytes) {
  const int64_t floats = bytes / static_cast<int64_t>(sizeof(float));
  std::vector<float> x(static_cast<size_t>(floats + 16), 1.0f);
  const float* aligned = x.data();
  while (reinterpret_cast<uintptr_t>(aligned) % 64 != 0) ++aligned;
  return BestRate(5, [&] {
    g_sink = HWY_DYNAMIC_DISPATCH(ReadLoopImpl)(aligned, floats);
    return static_cast<double>(floats * sizeof(float));
  });
}

}  // namespace kvring
#endif
