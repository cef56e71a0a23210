// SPDX-License-Identifier: Apache-2.0
// How much memory a request will take, said before it starts.
#pragma once

#include <cstdint>

#include "kernels/codec.h"
#include "kernels/visibility.h"
#include "runtime/base/shard_map.h"
#include "runtime/model/model_config.h"

namespace kvring {

struct MemoryPlan {
  int64_t kv_bytes = 0;  // at the end of the request, on the fullest slot
  int64_t kv_peak = 0;   // the largest moment: one layer's chunk is exact while its attention runs
  int64_t buffers = 0;   // activations of a step and attention's exchange buffers
  int64_t total() const {
    return kv_peak + buffers;
  }  // beyond what the process holds once the model is loaded
};

// For the fullest rank of `map`; tokens: prompt and answer together; chunk: largest prompt slice of a step.
MemoryPlan PlanMemory(const ModelConfig& config, const Codec& codec, const ShardMap& map,
                      int64_t tokens, int64_t chunk, const VisibilityRule& rule);

// The largest number of tokens whose plan fits in `bytes` a rank; 0 when not even one block does. Bisection over PlanMemory.
int64_t LargestContext(const ModelConfig& config, const Codec& codec, const ShardMap& map,
                       int64_t chunk, const VisibilityRule& rule, int64_t bytes, int64_t limit);

}  // namespace kvring
