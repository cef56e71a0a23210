// SPDX-License-Identifier: Apache-2.0
// RoPE as a model file declares it: every scaling becomes a frequency table, or the file is refused (F10).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/rope.h"
#include "runtime/base/status.h"

namespace kvring {

class GgufFile;

// The three-band scaling of Llama 3.1: waves shorter than original / high stay, waves longer than original / low are
// stretched by factor, between them both are mixed.
struct Llama3Scaling {
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double original_context = 8192.0;
};

// [rotary / 2] divisors of the frequencies base^(-2i/rotary): what a GGUF's rope_freqs.weight holds.
std::vector<float> Llama3Factors(const Llama3Scaling& scaling, int rotary, double base);

struct RopeQuery {
  const GgufFile* file = nullptr;
  std::string architecture;  // prefix of the keys
  RopePairing pairing = RopePairing::kInterleaved;
  int head_dim = 0;
  int64_t trained_context = 0;  // stands in for a missing original length; 0: unknown
};

struct RopeFound {
  RopeTable table;
  std::string scaling;  // "none", "linear", "yarn", "llama3 factors", or two of them with " + "
};

// Refuses, naming file and key or tensor, what cannot be applied: an unknown scaling type, one with parameters missing, a
// factor tensor of the wrong length or with numbers that are not positive.
absl::StatusOr<RopeFound> DeriveRope(const RopeQuery& query);

}  // namespace kvring
