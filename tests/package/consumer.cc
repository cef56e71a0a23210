// SPDX-License-Identifier: Apache-2.0
// Uses one thing of each layer through the installed headers and libraries alone.
#include <cstdio>
#include <vector>

#include "kernels/softmax_partial.h"
#include "kvstore/codec_spec.h"
#include "kvstore/sequence_shard.h"
#include "runtime/base/shard_map.h"
#include "runtime/engine/engine.h"
#include "runtime/text/utf8.h"

int main() {
  const auto map = kvring::ShardMap::Create(4, 64, 64, 0);
  if (!map.ok()) return std::fprintf(stderr, "%s\n", map.status().ToString().c_str()), 1;
  int64_t tokens = 0;
  for (int slot = 0; slot < 4; ++slot) tokens += map->SlotTokens(slot, 10000);
  if (tokens != 10000) return std::fprintf(stderr, "the ranks hold %ld tokens\n", tokens), 1;

  std::vector<float> storage(kvring::PartialFloats(2, 8));
  const kvring::SoftmaxPartial partial = kvring::PartialAt(storage.data(), 2, 8);
  kvring::MakeEmpty(partial);
  if (partial.l[1] != 0.0f) return std::fprintf(stderr, "an empty partial is not empty\n"), 1;

  const kvring::KvShape shape{.layers = 2, .query_heads = 4, .kv_heads = 2, .dk = 64, .dv = 64};
  const kvring::RopeTable rope =
      kvring::MakeRopeTable(kvring::RopePairing::kInterleaved, 64, 64, 10000.0, {});
  const auto codec = kvring::MakeCodec("rot4", shape, {&rope, &rope});
  if (!codec.ok()) return std::fprintf(stderr, "%s\n", codec.status().ToString().c_str()), 1;
  const auto plan = kvring::ParsePlan(kvring::SerializePlan({.epoch = 3, .numerics = "f32"}));
  if (!plan.ok() || plan->epoch != 3) return std::fprintf(stderr, "a plan did not come back\n"), 1;
  kvring::EngineOptions options;
  options.chunk = -1;
  if (kvring::Engine::Create(options, nullptr).ok())
    return std::fprintf(stderr, "a bad option was taken\n"), 1;
  if (kvring::Utf8CharLength("a", 1) != 1)
    return std::fprintf(stderr, "'a' is not a character\n"), 1;

  std::printf("%s: %.3f bits an element\n", (*codec)->traits().id.c_str(),
              kvring::BitsPerElement(**codec, shape));
  return 0;
}
