// SPDX-License-Identifier: Apache-2.0
// Linear layers in all forms on one core. One row (decode): bytes of weights a second as a share of what the core reads at
// the same working-set size in the same run ("of_read"); the layer exists so often that all copies together are beyond the
// cache, and the next call takes the next copy. 512 rows (prefill): GFLOP/s (2 a weight and row) as a share of the core's
// fp32 multiply-adds ("of_fma_peak").
//
// Predicted before measuring, for AVX-512 with VNNI on a core that issues one 512-bit dot product or multiply-add a cycle
// and as many other operations beside it (Zen 4, about 3.7 GHz):
//   One row: 32 columns by 32 numbers are 16 dot products, 6 multiplications, 24 operations that take codes apart, 30 loads:
//   some 30 cycles for 640 bytes (4 bits) or 1088 (8 bits), 79 and 130 GB/s, beyond what memory gives one core: bound by
//   memory. So at least 85 % of_read, and against bf16 3.2 (5 bits a weight) and 1.9 (8.5 bits) times as fast. Measured:
//   1.4 to 1.9 of_read, which is a loop that leaves fetching to the machine.
//   512 rows: 6 rows by 32 columns by 32 numbers are 96 dot products and 36 multiplications: 132 cycles for 12288
//   operations, 93 a cycle where f32 has 32: 2.9 of_fma_peak at most (3.2 without offsets); less the rest, 2.5.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <map>
#include <random>
#include <vector>

#include "benchmarks/bench_main.h"
#include "benchmarks/machine_peak.h"
#include "kernels/block_linear.h"
#include "kernels/parallel.h"

namespace kvring {
namespace {

constexpr int64_t kBeyondCache = int64_t{160} << 20;
enum class Form { kF32, kBf16, kInt8, kBlocks4, kBlocks8 };

double g_peak_flops, g_peak_read;

std::vector<float> Numbers(int64_t n) {
  std::mt19937 generator(1);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = static_cast<float>(generator()) * 0x1p-31f - 1.0f;
  return x;
}

// As Q4_1 or Q8_0 have them: scales that fit fp16.
BlockWeights Blocks(int bits, int64_t rows, int64_t in) {
  std::mt19937 generator(1);
  BlockWeights w;
  w.rows = rows;
  w.bits = bits;
  w.codes.resize(static_cast<size_t>(rows * in));
  for (int8_t& code : w.codes)
    code = static_cast<int8_t>(bits == 4 ? generator() % 16 : generator() % 255 - 127);
  w.scales.assign(static_cast<size_t>(rows * in / 32), 0x1p-8f);
  if (bits == 4) w.offsets.assign(w.scales.size(), -0x1p-5f);
  return w;
}

std::unique_ptr<Linear> Make(Form form, int64_t out, int64_t in, std::string* error) {
  if (form == Form::kBlocks4) return MakeBlockLinear({Blocks(4, out, in)}, in);
  if (form == Form::kBlocks8) return MakeBlockLinear({Blocks(8, out, in)}, in);
  const LinearMath math = form == Form::kF32    ? LinearMath::kF32
                          : form == Form::kBf16 ? LinearMath::kBf16
                                                : LinearMath::kInt8;
  return MakeLinear(Numbers(out * in).data(), out, in, {math, false}, error);
}

// Args: rows, out, in.
void BenchLinear(benchmark::State& state, Form form) {
  const int64_t rows = state.range(0), out = state.range(1), in = state.range(2);
  std::vector<std::unique_ptr<Linear>> copies;
  int64_t bytes = 0;
  do {
    std::string error;
    auto linear = Make(form, out, in, &error);
    if (linear == nullptr) return state.SkipWithError(error.c_str());
    bytes += linear->bytes();
    copies.push_back(std::move(linear));
  } while (rows < 64 && bytes < kBeyondCache);
  const auto x = Numbers(rows * in);
  std::vector<float> y(static_cast<size_t>(rows * out));
  size_t next = 0;
  for (auto _ : state) {
    copies[next]->Forward(x.data(), y.data(), rows);
    next = next + 1 == copies.size() ? 0 : next + 1;
    benchmark::ClobberMemory();
  }
  const double flops = 2.0 * rows * out * in, read = static_cast<double>(copies[0]->bytes());
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["GFLOP/s"] = benchmark::Counter(flops * 1e-9, rate);
  state.counters["of_fma_peak"] = benchmark::Counter(flops / g_peak_flops, rate);
  state.counters["GB/s"] = benchmark::Counter(read * 1e-9, rate);
  state.counters["of_read"] = benchmark::Counter(read / g_peak_read, rate);
  state.counters["bits"] = 8.0 * read / static_cast<double>(out * in);
}

// The small model's layers and its output head, and a layer of an 8B model.
void Args(benchmark::internal::Benchmark* bench) {
  for (int64_t rows : {1, 4, 8, 512}) {
    for (auto [out, in] : {std::pair{960, 576}, {576, 576}, {3072, 576}, {576, 1536}, {4096, 4096}})
      bench->Args({rows, out, in});
  }
  bench->Args({1, 49152, 576})->Args({4, 49152, 576});
}
BENCHMARK_CAPTURE(BenchLinear, f32, Form::kF32)->Apply(Args);
BENCHMARK_CAPTURE(BenchLinear, bf16, Form::kBf16)->Apply(Args);
BENCHMARK_CAPTURE(BenchLinear, int8, Form::kInt8)->Apply(Args);
BENCHMARK_CAPTURE(BenchLinear, blocks4, Form::kBlocks4)->Apply(Args);
BENCHMARK_CAPTURE(BenchLinear, blocks8, Form::kBlocks8)->Apply(Args);

// A fork and join of empty tasks: what a parallel region costs beyond its work. Args: threads.
void BenchFork(benchmark::State& state) {
  const auto threads = static_cast<int>(state.range(0));
  SetThreads(threads);
  for (auto _ : state) ParallelFor(threads, [](int64_t i) { benchmark::DoNotOptimize(i); });
  SetThreads(1);
}
BENCHMARK(BenchFork)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace kvring

int main(int argc, char** argv) {
  if (!kvring::StartBenchmarks(argc, argv)) return 1;
  kvring::g_peak_flops = kvring::PeakFlops();
  kvring::g_peak_read = kvring::PeakReadBytes(kvring::kBeyondCache);
  std::fprintf(stderr, "one core: %.1f GFLOP/s of fp32 multiply-adds, %.1f GB/s read\n",
               kvring::g_peak_flops * 1e-9, kvring::g_peak_read * 1e-9);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
