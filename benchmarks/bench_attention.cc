// SPDX-License-Identifier: Apache-2.0
// Decode attention of one KV head on one core, pages beyond the cache: bytes of pages a second as a share of what the core reads
// at the same working-set size in the same run ("of_read"), and keys a second. "direct": fp16, fp32, or
// codes of int and nf, multiplied as they lie; "tile": decoded into fp32 tiles first; "int8": integer dot products. nuq
// goes through tiles.
//
// Pages are visited with a stride, as a sequence's pages of one (layer, head) lie in memory: the next page is never the
// next address.
//
// Predicted before measuring, for AVX-512 with VNNI on a core that issues one 512-bit operation of a kind a cycle (Zen 4; two
// on Zen 5 or Golden Cove), d = 64, 64 keys, g query heads, a page of 4224 bytes at 4 bits:
//   scores 64 g, values 64 g, bias 128 g dot products;  rot4: 128 look-ups, 64 shifts, 66 loads;  softmax about 90 g.
//   g = 3: 768 dot products (768 cycles), about 500 others on other ports: some 800 cycles, 215 ns at 3.7 GHz, 19.6 GB/s.
//   rot3 (3200 bytes) and rot2 (2176) spend the same dot products: the same keys a second, so 14.9 and 10.1 GB/s; rot8 (8320
//   bytes) is bound by memory. g = 1: some 350 cycles: bound by memory at 4 bits. g = 8: some 2200 cycles, bound by dot products.
//   d = 128: twice everything but softmax: shares are those of d = 64 or a little better.
// Measured on Zen 4 (3.7 GHz, 15 to 17 GB/s read): the bias was halved by its even and odd parts (64 g dot products), so g = 3
// is bound by 576 dot products (157 ns) and spends 410 ns a page in cache: 170 in the dot products, 150 in softmax (45
// operations for 16 keys and row, of which 12 share the ports of the dot products; steps of one page overlap little), the rest
// in turning the bias and reading scales. g = 1 and rot8 reach 60 % of the read bandwidth, g = 3 at 4 bits 45 % with 4 KiB pages
// of the system and 53 % with huge ones: a page's first lines wait for the walk through nested page tables.
//
// tc, predicted before measuring, against rot at the same bits (d = 64, g = 3, variances that fall 200-fold over the
// coefficients, about as the small model's do: classes of 5 to 1 bits at tc3): the same dot products, and for each 8 coefficients
// of 16 slots some 10 operations at 3, 5, 6 bits, 4 or 5 at 1, 2, 4 where rot needs 4 to 7; values add two halves of a register
// a class and row (100 a page), weights are laid out in pairs (50), a key has two sums (40). In all some 500 operations more in
// 1500: tc3 takes 1.2 to 1.3 times rot3's time, tc4 1.3 times rot4's, tc2 about 1.1 times rot2's, since classes without bits cost
// nothing; with adapt and 32 pages a call another 3 %.
// Measured on Zen 4 beside other work, best of many runs, ns a page in cache: tc4 536 to rot4's 433 (1.24), tc2 485 to 415 (1.17),
// tc3 to rot3 1.26; 64 MB: 726 to 611 (1.19), 660 to 507 (1.30), 601 to 470 (1.28),
// and tc3 by tiles 12192. Before the sums of keys stayed in registers across classes (a compiler that sees loops over
// them in a switch keeps them in memory) tc4 took 686 and tc3 629.
//
// f16 direct, predicted before measuring (d = 64, g = 3, a page of 16 KiB): 2 x 64 x 64 x 3 / 16 = 1536 multiply-adds of 512 bits, 415 ns
// at one a cycle; widening runs on other ports; softmax about 100 ns. So some 520 ns in cache, and memory binds: 0.9 to 1 us a page at
// 16 to 18 GB/s. g = 1 takes a third of the multiply-adds, g = 8 has 1107 ns of them and is bound by arithmetic. f32 has twice the bytes.
// Measured on Zen 4, ns a page in cache / 256 MB with 4 KiB pages of the system / with huge ones, share of the read bandwidth in brackets:
//   f16 direct  g = 1   361 / 1271 (79 %) /  974 (97 %)      f16 tile  g = 3  1155 / 2964 (34 %)   before: 1331 / 3244 (31 %)
//               g = 3   623 / 1221 (82 %) /  813 (116 %)     f32 direct  g = 3  700 / 2050 (98 %)   before: 1577 / 4175 (47 %)
//               g = 4   776 / 1352 (74 %) /  963 (98 %)      d = 128, f16 direct  g = 1, 3, 4, 8: 256 MB with
//               g = 8  1519 / 2084 (48 %) / 1739 (54 %)        4 KiB pages 2309, 2045, 2308, 3634 (87, 98, 87, 55 %)
// More than all is possible because the share is of what plain loads read; the next page is asked for ahead. In cache 84 % of the time
// goes into the products (samples of a profile): three quarters of that are what the multiply-adds need at
// one a cycle. What huge pages save is walks through page tables. Instruction counts are of the code: this machine counts no events.
// Exact rows, the open cell's (64 tokens), g = 3: predicted 700 to 870, measured 893 after RoPE (before: 2696) and 1273 before RoPE
// (3496). By samples of the latter: 335 turning (512 multiplications, 256 additions, 512 loads and 256 stores of 512 bits), 306
// transposing, 513 products, 83 softmax.
//
// int and nf, predicted 890 ns in cache for g = 3: 415 in multiply-adds, 277 in turning keys (1024 multiplications that must not be fused:
// two angles are added, then applied), look-ups (a shift and a permutation for 16 codes) beside them, softmax 100.
// Measured: int4 1421 in cache, 1713 at 256 MB (before: 2529, 4025); int3 1483, int2 1445, nf4 1422: bits do not matter. By samples: 463
// turning keys, 390 values, 291 scores, 127 angles of the page's first position in double, 97 softmax. The multiply-adds
// alone would take 208 ns of each of values and scores: a row's scale, offset and table and the look-ups (a load, a shift, a
// permutation for 16 codes) do not hide behind them. Words kept in registers, without these loads, took as long: which port or
// latency it is, is not known. g = 8 gains nothing over tiles in cache (2414, 2409): codes are looked up for
// 6 rows and again for 2.
//
// nuq, by tiles in fp32: what binds are its keys, stored before RoPE. A page of d = 64 turns 32 planes of 4 registers, each 8 products and
// 4 sums without fused operations (angle of the slot, then the plane), so 1024 products at one a cycle: 277 ns at 3.7 GHz. Beside them on
// other ports: 256 shifts, 256 look-ups, 128 pairs of loads of angles, 256 stores at two cycles each. Values: 256 shifts and
// look-ups (1.4 cycles a pair), 256 stores: 139 ns. The angles of the page's first position, 32 in double: 180 products, 50 ns. With outliers
// keys are stored once more before they are turned (139 ns) and 62 slots a side are added one by one (a load, a sum and
// a store each, 16 at a time to find their places).
// Measured on Zen 4 beside other work, best of many runs, ns to decode keys + values of a page in cache (before: codes, outliers and
// planes apart, angles one by one): nuq4 450 + 185 (1020 + 390), nuq3 470 + 205 (885 + 437), nuq2 453 + 194 (964 + 404), nuq4-1%
// 612 + 233 (1010 + 475), nuq3-1% 614 + 261 (1033 + 497), nuq2-1% 624 + 242 (1053 + 485). The rest of a page, at g = 3 some 900 ns,
// are the products and softmax of tiles. Whole, 256 MB, g = 3, million keys a second: nuq4 18.4 to 32.2 (14 % of the bandwidth), nuq3 16.0
// to 33.7 (11 %), nuq2 19.3 to 37.7 (9 %), nuq4-1% 16.5 to 27.1 (13 %), nuq3-1% 15.2 to 29.7 (11 %), nuq2-1% 18.2 to 32.5 (9 %). About 0.2 of
// that came from asking for the next page meanwhile, some lines at a time.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cmath>
#include <cstdio>
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

// Args: head size, query heads of the group, megabytes of pages, huge pages of the system or not. 32 pages a call, as pieces of a virtual shard are read.
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
    for (size_t first = 0; first < views.size(); first += 32) {
      args.pages = views.subspan(first, std::min<size_t>(32, views.size() - first));
      AttendPages(args, scratch, partial);
    }
    benchmark::ClobberMemory();
  }
  const double keys = static_cast<double>(views.size()) * 64;
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
