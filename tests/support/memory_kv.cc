// SPDX-License-Identifier: Apache-2.0
#include "tests/support/memory_kv.h"

#include <algorithm>
#include <cmath>

namespace kvring {
namespace {

uint64_t Mix(uint64_t x) {  // SplitMix64's output function (Steele, Lea and Flood 2014)
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

std::vector<Half> ToHalves(const std::vector<float>& row) {
  std::vector<Half> halves(row.size());
  std::transform(row.begin(), row.end(), halves.begin(), FloatToHalf);
  return halves;
}

}  // namespace

void NormalRow(uint64_t seed, int layer, int64_t position, int head, float* row, int n) {
  const uint64_t at = Mix(Mix(Mix(seed) + layer) * 31 + position) * 17 + head;
  for (int i = 0; i < n; ++i) {
    const uint64_t bits = Mix(at + i);
    double sum = 0;  // of four uniforms, centred: close to normal, variance one
    for (int part = 0; part < 4; ++part) sum += double((bits >> (part * 16)) & 65535) / 65535 - 0.5;
    sum *= std::sqrt(3.0);
    row[i] = HalfToFloat(FloatToHalf(static_cast<float>(sum)));
  }
}

void NormalKeys(uint64_t seed, int layer, int64_t position, int head, float* row, int n) {
  NormalRow(seed + 77, layer, position, head, row, n);
  row[3 % n] += 8.0f;  // a channel far from zero, as real keys have
  for (int i = 0; i < n; ++i) row[i] = HalfToFloat(FloatToHalf(row[i]));
}

MemoryKv::MemoryKv(const MemoryKvOptions& options, const ShardMap& map)
    : options_(options), map_(map) {
  const KvShape& shape = options_.shape;
  blocks_.resize(size_t(shape.layers) * shape.kv_heads * map.virtual_shards());
  for (int64_t begin = 0; begin < options_.length; begin += shape.block_tokens) {
    if (map.Home(begin) != options_.rank) continue;
    for (int layer = 0; layer < shape.layers; ++layer)
      for (int head = 0; head < shape.kv_heads; ++head)
        blocks_[Index(layer, head, map.Shard(begin))].push_back(MakeBlock(layer, head, begin));
  }
}

size_t MemoryKv::Index(int layer, int head, int virtual_shard) const {
  return (size_t(layer) * options_.shape.kv_heads + head) * map_.virtual_shards() + virtual_shard;
}

MemoryKv::Block MemoryKv::MakeBlock(int layer, int head, int64_t begin) const {
  KvShape shape = options_.shape;
  Block block;
  block.begin = begin;
  block.tokens = static_cast<int>(std::min<int64_t>(shape.block_tokens, options_.length - begin));
  std::vector<float> k(size_t(block.tokens) * shape.dk), v(size_t(block.tokens) * shape.dv);
  for (int t = 0; t < block.tokens; ++t) {
    options_.keys(options_.seed, layer, begin + t, head, k.data() + t * shape.dk, shape.dk);
    options_.values(options_.seed, layer, begin + t, head, v.data() + t * shape.dv, shape.dv);
  }
  const CodecTraits& traits = options_.codec->traits();
  if (traits.lossless || block.tokens == shape.block_tokens) {
    // Encode takes all heads of a token; the others get the same rows and a page that nobody reads.
    std::vector<std::vector<uint8_t>> room(shape.kv_heads);
    std::vector<uint8_t*> pages;
    for (int h = 0; h < shape.kv_heads; ++h) {
      room[h].assign(options_.codec->PageSize(layer, h).total(), 0);
      pages.push_back(room[h].data());
    }
    std::vector<float> all_k, all_v;
    for (int t = 0; t < block.tokens; ++t) {
      for (int h = 0; h < shape.kv_heads; ++h) {
        all_k.insert(all_k.end(), k.begin() + t * shape.dk, k.begin() + (t + 1) * shape.dk);
        all_v.insert(all_v.end(), v.begin() + t * shape.dv, v.begin() + (t + 1) * shape.dv);
      }
    }
    EncodeArgs args{.layer = layer, .block_begin = begin, .first = 0, .count = block.tokens};
    args.k = all_k.data();
    args.v = all_v.data();
    args.pages = pages.data();
    if (!options_.codec->Encode(args)) block.packed = std::move(room[head]);
  }
  if (!traits.lossless) {
    block.k = ToHalves(k);
    block.v = ToHalves(v);
  }
  return block;
}

void MemoryKv::Pages(int layer, int head, int virtual_shard, std::vector<PageView>& pages) const {
  const CodecTraits& traits = options_.codec->traits();
  for (const Block& block : blocks_[Index(layer, head, virtual_shard)]) {
    PageView page;
    page.packed = block.packed.empty() ? nullptr : block.packed.data();
    page.begin = block.begin;
    page.tokens = block.tokens;
    if (!block.k.empty()) {
      page.exact_k = page.sink_k = block.k.data();
      page.exact_v = page.sink_v = block.v.data();
      page.exact_k_stride = page.sink_k_stride = options_.shape.dk;
      page.exact_v_stride = page.sink_v_stride = options_.shape.dv;
    }
    page.sinks = block.begin == 0 ? std::min(traits.sink_tokens, block.tokens) : 0;
    if (page.sinks == 0) page.sink_k = page.sink_v = nullptr;
    pages.push_back(page);
  }
}

}  // namespace kvring
