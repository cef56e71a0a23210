// SPDX-License-Identifier: Apache-2.0
// Micro-benchmarks of the kernels on one thread, as shares of this machine's own peak, measured in the same run:
// "of_fma_peak" of fp32 multiply-adds in registers, "of_read" of reading memory beyond the cache.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <random>
#include <vector>

#include "benchmarks/bench_main.h"
#include "benchmarks/machine_peak.h"
#include "kernels/attention.h"
#include "kernels/convert.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"

namespace kvring {
namespace {

double g_peak_flops, g_peak_read;

std::vector<float> Numbers(int64_t n) {
  std::mt19937 generator(1);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = static_cast<float>(generator()) * 0x1p-31f - 1.0f;
  return x;
}

void ReportFlops(benchmark::State& state, double flops) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["of_fma_peak"] =
      benchmark::Counter(flops / g_peak_flops, benchmark::Counter::kIsIterationInvariantRate);
}

void ReportBytes(benchmark::State& state, double bytes) {
  state.counters["GB/s"] =
      benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["of_read"] =
      benchmark::Counter(bytes / g_peak_read, benchmark::Counter::kIsIterationInvariantRate);
}

// Args: rows, out, in.
void BenchLinear(benchmark::State& state, LinearMath math) {
  const int64_t rows = state.range(0), out = state.range(1), in = state.range(2);
  std::string error;
  const auto linear = MakeLinear(Numbers(out * in).data(), out, in, {math, false}, &error);
  if (linear == nullptr) return state.SkipWithError(error.c_str());
  const auto x = Numbers(rows * in);
  std::vector<float> y(static_cast<size_t>(rows * out));
  for (auto _ : state) {
    linear->Forward(x.data(), y.data(), rows);
    benchmark::ClobberMemory();
  }
  ReportFlops(state, 2.0 * rows * out * in);
  ReportBytes(state, static_cast<double>(linear->bytes()));
}

void LinearArgs(benchmark::internal::Benchmark* bench) {
  for (int64_t rows : {1, 8, 64, 512}) {
    for (auto [out, in] : {std::pair{576, 576}, {1536, 576}, {576, 1536}})
      bench->Args({rows, out, in});
  }
  bench->Args({1, 49152, 576})->Args({64, 4096, 4096});
}
BENCHMARK_CAPTURE(BenchLinear, f32, LinearMath::kF32)->Apply(LinearArgs);
BENCHMARK_CAPTURE(BenchLinear, bf16, LinearMath::kBf16)->Apply(LinearArgs);
BENCHMARK_CAPTURE(BenchLinear, int8, LinearMath::kInt8)->Apply(LinearArgs);

// Tiles that are there already: the arithmetic of attention without any decoding.
class ReadyTiles : public Codec {
 public:
  ReadyTiles() {
    traits_.lossless = true;
    traits_.id = "ready";
  }
  const CodecTraits& traits() const override { return traits_; }
  PageBytes PageSize(int, int) const override { return {}; }
  Error Encode(const EncodeArgs&) const override { return {"nothing is stored"}; }
  void DecodeKeys(int, int, const float*, const PageView&, float*) const override {}
  void DecodeValues(int, int, const float*, const PageView&, float*) const override {}

 private:
  CodecTraits traits_;
};

// Args: rows, head size. 64 pages, every row sees all of them.
void BenchAttention(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const int d = static_cast<int>(state.range(1));
  constexpr int kPages = 64, kBlock = 64;
  const ReadyTiles codec;
  const auto q = Numbers(rows * d);
  const std::vector<int64_t> positions(static_cast<size_t>(rows), kPages * kBlock);
  const uint8_t packed = 0;
  std::vector<PageView> pages(kPages);
  for (int i = 0; i < kPages; ++i) {
    pages[i].packed = &packed;
    pages[i].begin = i * kBlock;
    pages[i].tokens = kBlock;
  }
  AttendScratch scratch;
  scratch.kt = Numbers(d * kBlock + 16);
  scratch.v = scratch.kt;
  std::vector<float> storage(static_cast<size_t>(PartialFloats(rows, d)));
  const SoftmaxPartial partial = PartialAt(storage.data(), rows, d);
  AttendArgs args;
  args.codec = &codec;
  args.dk = args.dv = d;
  args.pages = pages;
  args.positions = positions;
  args.raw_q = args.packed_q = q.data();
  for (auto _ : state) {
    MakeEmpty(partial);
    AttendPages(args, scratch, partial);
    benchmark::ClobberMemory();
  }
  ReportFlops(state, 4.0 * rows * d * kPages * kBlock);
}
BENCHMARK(BenchAttention)
    ->ArgsProduct({{1, 3, 6, 48, 192, 1536}, {64, 128}})
    ->Args({192, 80})
    ->Args({192, 100});

// Args: rows. A closed cell's fp16 rows: 64 x 64 to a tile, transposed.
void BenchExactTile(benchmark::State& state) {
  std::vector<Half> x(64 * 64, 0x3c00);
  std::vector<float> rows(64 * 64), tile(64 * 64);
  for (auto _ : state) {
    HalfToFloat(x.data(), 64 * 64, rows.data());
    Transpose(rows.data(), 64, 64, tile.data());
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BenchExactTile);

void BenchMerge(benchmark::State& state) {
  constexpr int64_t kRows = 512 * 9, kDv = 64;
  std::vector<float> a = Numbers(PartialFloats(kRows, kDv)), b = a;
  for (auto _ : state) {
    Merge(PartialAt(a.data(), kRows, kDv), PartialAt(b.data(), kRows, kDv));
    benchmark::ClobberMemory();
  }
  ReportBytes(state, static_cast<double>(2 * a.size() * sizeof(float)));
}
BENCHMARK(BenchMerge);

void BenchRmsNorm(benchmark::State& state) {
  const auto x = Numbers(512 * 576), w = Numbers(576);
  std::vector<float> y(x.size());
  for (auto _ : state) {
    RmsNorm(x.data(), w.data(), 1e-5f, 512, 576, y.data());
    benchmark::ClobberMemory();
  }
  ReportBytes(state, static_cast<double>(2 * x.size() * sizeof(float)));
}
BENCHMARK(BenchRmsNorm);

void BenchSwiGlu(benchmark::State& state) {
  const auto g = Numbers(512 * 1536);
  std::vector<float> y(g.size());
  for (auto _ : state) {
    SwiGlu(g.data(), g.data(), 512 * 1536, y.data());
    benchmark::ClobberMemory();
  }
  ReportBytes(state, static_cast<double>(2 * g.size() * sizeof(float)));
}
BENCHMARK(BenchSwiGlu);

void BenchLogSumExp(benchmark::State& state) {
  const auto x = Numbers(49152);
  for (auto _ : state) benchmark::DoNotOptimize(LogSumExp(x.data(), 49152));
}
BENCHMARK(BenchLogSumExp);

}  // namespace
}  // namespace kvring

int main(int argc, char** argv) {
  if (!kvring::StartBenchmarks(argc, argv)) return 1;
  kvring::g_peak_flops = kvring::PeakFlops();
  kvring::g_peak_read = kvring::PeakReadBytes();
  std::fprintf(stderr, "one core: %.1f GFLOP/s of fp32 multiply-adds, %.1f GB/s read\n",
               kvring::g_peak_flops * 1e-9, kvring::g_peak_read * 1e-9);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
