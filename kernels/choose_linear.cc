// SPDX-License-Identifier: Apache-2.0
// Which form of products a job takes. The answer is part of the numerics, so two runs on one machine must find the same
// one, however busy it is: CPU time of one thread, the fastest of several.
#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <mutex>
#include <vector>

#include "kernels/block_linear.h"
#include "kernels/linear.h"
#include "kernels/parallel.h"

namespace kvring {
namespace {

// A prompt's rows by a layer of a small model.
constexpr int64_t kRows = 128, kIn = 576, kOut = 1536;
constexpr int kRounds = 7;

// CPU time of this thread: what others do on the same core does not count.
double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Infinity where the form does not exist.
struct FormTime {
  double prompt = INFINITY, step = INFINITY;  // seconds: many rows, one row
};

double Fastest(const Linear& linear, const float* x, float* y, int64_t rows) {
  linear.Forward(x, y, rows);
  double best = INFINITY;
  for (int i = 0; i < kRounds; ++i) {
    const double start = ThreadSeconds();
    linear.Forward(x, y, rows);
    best = std::min(best, ThreadSeconds() - start);
  }
  return best;
}

FormTime Time(const Linear* linear) {
  if (linear == nullptr) return {};
  const std::vector<float> x(kRows * kIn, 0.25f);
  std::vector<float> y(kRows * kOut);
  const int threads = Threads();
  SetThreads(1);
  const FormTime time{Fastest(*linear, x.data(), y.data(), kRows),
                      Fastest(*linear, x.data(), y.data(), 1)};
  SetThreads(threads);
  return time;
}

FormTime Time(LinearMath math) {
  const std::vector<float> w(kOut * kIn, 0.5f);
  std::string error;
  return Time(MakeLinear(w.data(), kOut, kIn, {math, false}, &error).get());
}

FormTime Time(const BlockForm& form) {
  BlockWeights w;
  w.rows = kOut;
  w.bits = form.bits;
  w.group = form.group;
  w.codes.assign(kOut * kIn, 5);
  w.scales.assign(static_cast<size_t>(kOut * kIn / form.group), 0.5f);
  if (form.offset) w.offsets.assign(w.scales.size(), -0.5f);
  return Time(MakeBlockLinear({w}, kIn).get());
}

struct Choice {
  LinearMath math;
  FormTime time;
};

Choice ChoosePlain() {
  const FormTime bf16 = Time(LinearMath::kBf16), f32 = Time(LinearMath::kF32);
  if (bf16.prompt < f32.prompt) return {LinearMath::kBf16, bf16};
  return {LinearMath::kF32, f32};
}

}  // namespace

LinearMath ChooseLinearMath(const std::optional<BlockForm>& blocks) {
  static const Choice plain = ChoosePlain();
  if (!blocks.has_value()) return plain.math;
  static std::mutex mutex;
  static std::map<BlockForm, LinearMath> chosen;
  const std::lock_guard lock(mutex);
  const auto [at, is_new] = chosen.try_emplace(*blocks, plain.math);
  if (is_new) {
    const FormTime time = Time(*blocks);
    if (time.prompt * time.step < plain.time.prompt * plain.time.step)
      at->second = LinearMath::kBlocks;
  }
  return at->second;
}

}  // namespace kvring
