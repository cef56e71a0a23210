// SPDX-License-Identifier: Apache-2.0
// Logits to a token. Random numbers are a function of (seed, request, position) alone (Philox4x32-10; Salmon et al., SC 2011),
// so a sampled answer does not depend on company, chunks, ranks or restarts.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/base/status.h"

namespace kvring {

struct SamplingParams {
  float temperature = 0;  // 0: greedy
  int top_k = 0;          // keep the k most likely; 0: all
  float top_p =
      1;  // keep the smallest set of most likely tokens with this much probability; 1: all
  uint64_t seed = 0;
};

// INVALID_ARGUMENT naming the parameter and its range.
absl::Status CheckSampling(const SamplingParams& params);

// Greedy ties go to the lower id. logits: [vocab], finite.
int32_t SampleToken(std::span<const float> logits, const SamplingParams& params, uint64_t request,
                    int64_t position);

// Uniform in [0, 1) of a counter; 24 random bits.
float CounterUniform(uint64_t seed, uint64_t request, int64_t position);

}  // namespace kvring
