// SPDX-License-Identifier: Apache-2.0
// Decode attention of one KV head on one core, pages beyond the cache: bytes of pages a second as a share of what the core reads
// at the same working-set size in the same run ("of_read"), and keys a second. "direct": fp16, fp32, or
// codes of int and nf, multiplied as they lie; "tile": decoded into fp32 tiles first; "int8": integer dot products. nuq
// goes through tiles.
//
// Pages are visited with a stride, as a sequence's pages of one (layer, head) lie in memory: the next page is never the
// next address.
//
// What was predicted, what was measured and what binds: docs/speed.md.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>

#include "benchmarks/bench_main.h"
#include "benchmarks/machine_peak.h"
#include "benchmarks/run_facts.h"
#include "kernels/attention.h"

namespace kvring {
namespace {

std::vector<float> Numbers(int64_t n, float spread) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = normal(generator);
  return x;
}

// Held while a thread measures or fills memory: what the others do at the same time would be in the figure.
std::mutex g_preparing;

double ReadRate(int64_t megabytes, int threads = 1) {
  static std::map<std::pair<int64_t, int>, double> known;
  double& rate = known[{megabytes, threads}];
  if (rate == 0) {
    rate =
        threads == 1 ? PeakReadBytes(megabytes << 20) : PeakReadBytesAll(threads, megabytes << 20);
  }
  return rate;
}

// Tables of tc for white rows of one KV head, lambda falling 200-fold: bases are diagonal, which the speed of reading does not see.
std::shared_ptr<const CodecTables> TcTables(int d) {
  auto tables = std::make_shared<CodecTables>();
  const auto add = [&](const std::string& name, std::vector<float> values) {
    CodecTable& table = tables->tensors["tc/" + name];
    table.shape = {1, static_cast<int64_t>(values.size())};
    table.values = std::move(values);
  };
  std::vector<float> basis(static_cast<size_t>(d) * d, 0.0f), inverse = basis, lambda(d);
  for (int i = 0; i < d; ++i) {
    lambda[i] = 3.0f * std::pow(200.0f, -static_cast<float>(i) / static_cast<float>(d - 1));
    basis[i * d + i] = std::sqrt(lambda[i]);
    inverse[i * d + i] = 1.0f / basis[i * d + i];
  }
  for (const std::string side : {"k", "v"}) {
    add(side + "_mean", Numbers(d, 1.0f));
    add(side + "_basis", basis);
    add(side + "_inverse", inverse);
    add(side + "_lambda", lambda);
    add(side + "_weight", {1.0f});
    add(side + "_rot", {0.0f});
  }
  add("served_context", {2048.0f});
  return tables;
}

// Tables of nuq for white rows of one KV head: thresholds at the quantiles that the name asks for, an even datatype, and slots
// as many as the small model's heads have in the mean (62 of 4096 elements at 1 %).
std::shared_ptr<const CodecTables> NuqTables(const CodecRow& row, int d) {
  auto tables = std::make_shared<CodecTables>();
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, float value) {
    CodecTable& table = tables->tensors[std::string(row.name) + "/" + name];
    table.values.assign(static_cast<size_t>(shape.back()), value);
    table.shape = std::move(shape);
    return &table.values;
  };
  const float limit = row.outliers > 0 ? 2.58f : 4.0f;
  add("block_tokens", {1}, 64.0f);
  add("k_lo", {1, d}, -limit);
  add("k_hi", {1, d}, limit);
  for (const std::string side : {"k", "v"}) {
    const int codes = 1 << row.bits;
    std::vector<float>* const numbers = add(side + "_cent", {1, codes}, 0.0f);
    for (int j = 0; j < codes; ++j)
      (*numbers)[j] = (2.0f * static_cast<float>(j) + 1.0f) / static_cast<float>(codes) - 1.0f;
    add(side + "_slots", {1, 1}, row.outliers > 0 ? 62.0f * static_cast<float>(d) / 64.0f : 0.0f);
  }
  return tables;
}

// One KV head's pages: real codes of Gaussian rows in a few pages, copied over the whole working set.
class Pages {
 public:
  Pages(const std::string& name, int d, int group, int64_t bytes, bool huge_pages) {
    rope_ = MakeRopeTable(RopePairing::kInterleaved, d, d, 100000.0, {});
    CodecOptions options;
    options.shape = {1, group, 1, d, d, 64};
    options.rope = {&rope_};
    const size_t colon = name.find(':');
    if (colon != std::string::npos) options.flags = {name.substr(colon + 1)};
    const CodecRow* row = FindCodec(name.substr(0, colon));
    if (row->calibrated) options.tables = row->rate > 0 ? TcTables(d) : NuqTables(*row, d);
    codec_ = row->make(*row, options).codec;
    state_ = Numbers(std::max<int64_t>(1, codec_->StateFloats()), 0.0f);
    const std::vector<float> mean = Numbers(d, 1.0f);
    if (row->rate > 0 &&
        codec_->StateFloats() > 0) {  // each side: a basis of the sequence and deviations
      for (int64_t side : {0, d * d + d}) {
        for (int64_t i = 0; i < d; ++i) {
          state_[side + i * d + i] = 1.0f;
          state_[side + int64_t{d} * d + i] =
              std::sqrt(options.tables->Find("tc/k_lambda")->values[i]);
        }
      }
    } else if (codec_->StateFloats() > 0) {
      std::copy(mean.begin(), mean.end(), state_.begin());
      std::fill(state_.begin() + d, state_.end(), 1.0f);
    }
    const int64_t page_bytes = (codec_->PageSize(0, 0).total() + 63) / 64 * 64;
    const int64_t count = bytes / page_bytes;
    const size_t huge = 2 << 20, size = (count * page_bytes + huge - 1) / huge * huge;
    memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(huge, size)));
    if (huge_pages) madvise(memory_.get(), size, MADV_HUGEPAGE);
    uint8_t* at = memory_.get();
    Encode(d, at, page_bytes);
    for (int64_t i = kMade; i < count; ++i)
      std::copy_n(at + i % kMade * page_bytes, page_bytes, at + i * page_bytes);
    // A stride of about a hundred pages that meets them all.
    int64_t stride = 97;
    while (count % stride == 0) stride += 2;
    views_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      views_[i].packed = at + i * stride % count * page_bytes;
      views_[i].begin = (i % kPositions + 2) * 64;
      views_[i].tokens = 64;
    }
    page_bytes_ = codec_->PageSize(0, 0).total();
  }

  const Codec& codec() const { return *codec_; }
  const float* state() const { return codec_->StateFloats() > 0 ? state_.data() : nullptr; }
  const RopeTable& rope() const { return rope_; }
  const std::vector<PageView>& views() const { return views_; }
  int64_t page_bytes() const { return page_bytes_; }
  double bytes() const { return static_cast<double>(page_bytes_) * views_.size(); }

 private:
  static constexpr int64_t kMade = 16;
  static constexpr int64_t kPositions = int64_t{1}
                                        << 19;  // of pages: angles have tables up to 2^20

  void Encode(int d, uint8_t* at, int64_t page_bytes) {
    const auto rows = Numbers(kMade * 64 * d, 1.0f);
    for (int64_t i = 0; i < kMade; ++i) {
      uint8_t* const page = at + i * page_bytes;
      EncodeArgs args;
      args.block_begin = (i + 2) * 64;
      args.count = 64;
      args.k = args.v = rows.data() + i * 64 * d;
      args.state = state();
      args.pages = &page;
      if (codec_->Encode(args)) std::abort();
    }
  }

  RopeTable rope_;
  std::unique_ptr<Codec> codec_;
  std::vector<float> state_;
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  std::unique_ptr<uint8_t, Free> memory_;
  std::vector<PageView> views_;
  int64_t page_bytes_ = 0;
};

// A codec whose pages are decoded into fp32 tiles always, as they are for many rows.
class TileOnly final : public Codec {
 public:
  explicit TileOnly(const Codec& codec) : codec_(&codec) {}
  const CodecTraits& traits() const override { return codec_->traits(); }
  PageBytes PageSize(int layer, int head) const override { return codec_->PageSize(layer, head); }
  Error Encode(const EncodeArgs& args) const override { return codec_->Encode(args); }
  void DecodeKeys(int layer, int head, const float* state, const PageView& page,
                  float* kt) const override {
    codec_->DecodeKeys(layer, head, state, page, kt);
  }
  void DecodeValues(int layer, int head, const float* state, const PageView& page,
                    float* v) const override {
    codec_->DecodeValues(layer, head, state, page, v);
  }

 private:
  const Codec* codec_;
};

constexpr size_t kCall = 32;  // pages

void CountPages(benchmark::State& state, const Pages& pages, double read_rate) {
  const double keys = static_cast<double>(pages.views().size()) * 64;
  const auto rate = [](double x) {
    return benchmark::Counter(
        x, benchmark::Counter::kAvgThreadsRate | benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["GB/s"] = rate(pages.bytes() * 1e-9);
  state.counters["of_read"] = rate(pages.bytes() / read_rate);
  state.counters["Mkeys/s"] = rate(keys * 1e-6);
  state.counters["ns/page"] =
      benchmark::Counter(keys / 64 * 1e-9, benchmark::Counter::kAvgThreadsRate |
                                               benchmark::Counter::kIsIterationInvariantRate |
                                               benchmark::Counter::kInvert);
}

// Args: head size, query heads of the group, megabytes of pages, huge pages of the system or not. Each call has as many pages as a
// piece of a virtual shard, and knows the first ones of the next call, as dist/local_attention.cc tells it.
// kTile: as the codec reads pages in this form. tiles: decoded always. Each thread has pages of its own, all of them `MB`.
void BenchDecode(benchmark::State& state, const char* name, AttentionMath math,
                 bool tiles = false) {
  const int d = static_cast<int>(state.range(0));
  const int64_t group = state.range(1), megabytes = state.range(2);
  std::unique_lock<std::mutex> preparing(g_preparing);
  const double read_rate = ReadRate(megabytes, state.threads());
  const Pages pages(name, d, static_cast<int>(group), (megabytes << 20) / state.threads(),
                    state.range(3) != 0);
  preparing.unlock();
  const auto raw = Numbers(group * d, 1.44f / std::sqrt(static_cast<float>(d)));
  auto packed = raw;
  pages.codec().PrepareQuery(0, 0, pages.state(), raw.data(), group, packed.data());
  const std::vector<int64_t> positions(static_cast<size_t>(group),
                                       static_cast<int64_t>(pages.views().size() + 2) * 64);
  std::vector<float> storage(static_cast<size_t>(PartialFloats(group, d)));
  const SoftmaxPartial partial = PartialAt(storage.data(), group, d);
  AttendScratch scratch;
  const TileOnly tile_only(pages.codec());
  AttendArgs args;
  args.codec = tiles ? &tile_only : &pages.codec();
  args.state = pages.state();
  args.rope = &pages.rope();
  args.dk = args.dv = d;
  args.positions = positions;
  args.raw_q = raw.data();
  args.packed_q = packed.data();
  args.rule.kind = Visibility::kPacked;
  args.form.math = math;
  PackedQueries queries;
  if (math == AttentionMath::kInt8) {
    if (!pages.codec().PreparePacked(args, queries)) return state.SkipWithError("no int8 form");
    args.prepared = &queries;
  }
  const std::span<const PageView> views = pages.views();
  for (auto _ : state) {
    MakeEmpty(partial);
    args.was_announced = false;
    for (size_t first = 0; first < views.size(); first += kCall) {
      args.pages = views.subspan(first, std::min(kCall, views.size() - first));
      for (size_t i = 0; i < 2; ++i)
        args.announced[i] = first + kCall + i < views.size() ? &views[first + kCall + i] : nullptr;
      AttendPages(args, scratch, partial);
      args.was_announced = args.prepared != nullptr && args.announced[0] != nullptr;
    }
    benchmark::ClobberMemory();
  }
  CountPages(state, pages, read_rate);
}

// A page by plain loads; meanwhile lines of another one are asked for.
void ReadPage(const uint8_t* page, const uint8_t* ahead, int64_t bytes, uint64_t (&sums)[8]) {
  for (int64_t at = 0; at + 64 <= bytes; at += 64) {
    __builtin_prefetch(ahead + at);
    uint64_t line[8];
    std::memcpy(line, page + at, 64);
    for (int k = 0; k < 8; ++k) sums[k] += line[k];
  }
}

// What this order of addresses costs by itself: the same pages by plain loads, their memory touched for a call at once and lines
// asked for two pages ahead, as attention does. Args as above.
void BenchPlainReads(benchmark::State& state, const char* name) {
  const int64_t megabytes = state.range(2);
  const double read_rate = ReadRate(megabytes);
  const Pages pages(name, static_cast<int>(state.range(0)), 1, megabytes << 20,
                    state.range(3) != 0);
  const std::span<const PageView> views = pages.views();
  uint64_t sums[8] = {};
  for (auto _ : state) {
    for (size_t i = 0; i < views.size(); ++i) {
      for (size_t j = i; i % kCall == 0 && j < std::min(i + kCall, views.size()); ++j)
        for (int64_t at = 0; at < pages.page_bytes(); at += 4096)
          __builtin_prefetch(views[j].packed + at, 0, 2);
      ReadPage(views[i].packed, views[std::min(i + 2, views.size() - 1)].packed, pages.page_bytes(),
               sums);
    }
    benchmark::DoNotOptimize(sums);
  }
  CountPages(state, pages, read_rate);
}

// Exact rows of open cells: one sequence's fp16 rows of 512 tokens, keys of `name`'s domain. Args: head size, query heads.
void BenchExactRows(benchmark::State& state, const char* name) {
  const int d = static_cast<int>(state.range(0));
  const int64_t group = state.range(1), tokens = 512;
  const RopeTable rope = MakeRopeTable(RopePairing::kInterleaved, d, d, 100000.0, {});
  CodecOptions options;
  options.shape = {1, static_cast<int>(group), 1, d, d, 64};
  options.rope = {&rope};
  const auto codec = FindCodec(name)->make(*FindCodec(name), options).codec;
  const auto numbers = Numbers(tokens * d, 1.0f);
  std::vector<Half> rows(numbers.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = FloatToHalf(numbers[i]);
  std::vector<PageView> views(tokens / 64);
  for (size_t i = 0; i < views.size(); ++i) {
    views[i].exact_k = views[i].exact_v = rows.data() + i * 64 * d;
    views[i].exact_k_stride = views[i].exact_v_stride = d;
    views[i].begin = static_cast<int64_t>(i) * 64;
    views[i].tokens = 64;
  }
  const auto raw = Numbers(group * d, 1.44f / std::sqrt(static_cast<float>(d)));
  const std::vector<int64_t> positions(static_cast<size_t>(group), tokens - 1);
  std::vector<float> storage(static_cast<size_t>(PartialFloats(group, d)));
  const SoftmaxPartial partial = PartialAt(storage.data(), group, d);
  AttendScratch scratch;
  AttendArgs args;
  args.codec = codec.get();
  args.rope = &rope;
  args.dk = args.dv = d;
  args.positions = positions;
  args.raw_q = args.packed_q = raw.data();
  args.pages = views;
  for (auto _ : state) {
    MakeEmpty(partial);
    AttendPages(args, scratch, partial);
    benchmark::ClobberMemory();
  }
  state.counters["ns/page"] = benchmark::Counter(
      static_cast<double>(views.size()) * 1e-9,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void ExactArgs(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"d", "group"});
  for (int d : {64, 128})
    for (int group : {1, 3, 8}) bench->Args({d, group});
}
BENCHMARK_CAPTURE(BenchExactRows, post_rope, "f16")->Apply(ExactArgs);
BENCHMARK_CAPTURE(BenchExactRows, pre_rope, "int4")->Apply(ExactArgs);

void DecodeArgs(benchmark::internal::Benchmark* bench) {
  bench->Unit(benchmark::kMillisecond)->ArgNames({"d", "group", "MB", "huge"});
  for (int d : {64, 128})
    for (int group : {1, 3, 4, 8}) bench->Args({d, group, 256, 0});
  for (int group : {1, 3, 4, 8}) bench->Args({64, group, 256, 1});
  for (int megabytes : {16, 64, 1024}) bench->Args({64, 3, megabytes, 0});
  for (int megabytes : {64, 1024, 4096}) bench->Args({64, 3, megabytes, 1});
  for (int d : {64, 128})
    for (int group : {1, 3, 4}) bench->Args({d, group, 1, 0});
  for (int group : {8, 48, 384}) bench->Args({64, group, 1, 0});  // many rows: prefill
}

// By the wall clock, beside what all cores read together.
void AllCoresArgs(benchmark::internal::Benchmark* bench) {
  bench->Unit(benchmark::kMillisecond)->ArgNames({"d", "group", "MB", "huge"})->UseRealTime();
  bench->Threads(CpuCores());
  for (int huge : {0, 1}) bench->Args({64, 3, 256, huge});
  for (int megabytes : {64, 1024, 4096}) bench->Args({64, 3, megabytes, 1});
  for (int d : {64, 128}) bench->Args({d, 8, 256, 1});
}

struct Subject {
  const char* codec;
  const char* form;
  AttentionMath math = AttentionMath::kTile;
  bool tiles = false;
};

constexpr Subject kSubjects[] = {
    {"f16", "direct"},
    {"f32", "direct"},
    {"int4", "direct"},
    {"int3", "direct"},
    {"int2", "direct"},
    {"nf4", "direct"},
    {"f16", "tile", AttentionMath::kTile, true},
    {"int4", "tile", AttentionMath::kTile, true},
    {"rot4", "tile", AttentionMath::kTile, true},
    {"rot8", "int8", AttentionMath::kInt8},
    {"rot4", "int8", AttentionMath::kInt8},
    {"rot3", "int8", AttentionMath::kInt8},
    {"rot2", "int8", AttentionMath::kInt8},
    {"tc3", "tile", AttentionMath::kTile, true},
    {"tc4", "int8", AttentionMath::kInt8},
    {"tc3", "int8", AttentionMath::kInt8},
    {"tc3:adapt", "int8", AttentionMath::kInt8},
    {"tc2.5", "int8", AttentionMath::kInt8},
    {"tc2", "int8", AttentionMath::kInt8},
    {"nuq4", "tile"},
    {"nuq3", "tile"},
    {"nuq2", "tile"},
    {"nuq4-1%", "tile"},
    {"nuq3-1%", "tile"},
    {"nuq2-1%", "tile"},
};

void PlainArgs(benchmark::internal::Benchmark* bench) {
  bench->Unit(benchmark::kMillisecond)->ArgNames({"d", "group", "MB", "huge"});
  for (int megabytes : {64, 256, 1024}) bench->Args({64, 1, megabytes, 1});
}
BENCHMARK_CAPTURE(BenchPlainReads, f16, "f16")->Apply(PlainArgs);
BENCHMARK_CAPTURE(BenchPlainReads, rot8, "rot8")->Apply(PlainArgs);
BENCHMARK_CAPTURE(BenchPlainReads, rot4, "rot4")->Apply(PlainArgs);
BENCHMARK_CAPTURE(BenchPlainReads, rot3, "rot3")->Apply(PlainArgs);
BENCHMARK_CAPTURE(BenchPlainReads, rot2, "rot2")->Apply(PlainArgs);

void RegisterDecode() {
  for (const Subject& s : kSubjects) {
    const std::string name = std::string("BenchDecode/") + s.codec + "_" + s.form;
    const auto run = [s](benchmark::State& state) { BenchDecode(state, s.codec, s.math, s.tiles); };
    benchmark::RegisterBenchmark(name.c_str(), run)->Apply(DecodeArgs);
    benchmark::RegisterBenchmark(name.c_str(), run)->Apply(AllCoresArgs);
  }
}

}  // namespace
}  // namespace kvring

int main(int argc, char** argv) {
  if (!kvring::StartBenchmarks(argc, argv)) return 1;
  kvring::RegisterDecode();
  std::fprintf(stderr, "one core: %.1f GB/s read of 256 MB\n", kvring::ReadRate(256) * 1e-9);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
