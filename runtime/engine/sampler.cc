// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/elementwise.h"

namespace kvring {
namespace {

using Words = std::array<uint32_t, 4>;

Words Philox4x32(Words counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0], p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(p0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// Ids by falling logit, the lower id first among equals; only as many as top_k asks for.
std::vector<int32_t> MostLikely(std::span<const float> logits, int top_k) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const size_t keep = top_k > 0 ? std::min<size_t>(top_k, ids.size()) : ids.size();
  const auto before = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  std::partial_sort(ids.begin(), ids.begin() + keep, ids.end(), before);
  ids.resize(keep);
  return ids;
}

}  // namespace

float CounterUniform(uint64_t seed, uint64_t request, int64_t position) {
  const Words counter = {static_cast<uint32_t>(position),
                         static_cast<uint32_t>(static_cast<uint64_t>(position) >> 32),
                         static_cast<uint32_t>(request), static_cast<uint32_t>(request >> 32)};
  const Words random =
      Philox4x32(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return static_cast<float>(random[0] >> 8) * 0x1p-24f;
}

absl::Status CheckSampling(const SamplingParams& params) {
  if (!(params.temperature >= 0 && params.temperature <= 100)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--temp ", params.temperature, ": must be in [0, 100]"));
  }
  if (params.top_k < 0)
    return absl::InvalidArgumentError(
        absl::StrCat("--top-k ", params.top_k, ": must not be negative"));
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--top-p ", params.top_p, ": must be in (0, 1]"));
  }
  return absl::OkStatus();
}

int32_t SampleToken(std::span<const float> logits, const SamplingParams& params, uint64_t request,
                    int64_t position) {
  if (params.temperature == 0) {
    return static_cast<int32_t>(ArgMax(logits.data(), static_cast<int64_t>(logits.size())));
  }
  const std::vector<int32_t> ids = MostLikely(logits, params.top_k);
  std::vector<double> weights(ids.size());
  double total = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    total += weights[i] = std::exp((double{logits[ids[i]]} - logits[ids[0]]) / params.temperature);
  }
  size_t kept = 0;
  double kept_weight = 0;
  while (kept < ids.size() && (kept == 0 || kept_weight < params.top_p * total))
    kept_weight += weights[kept++];
  double target = CounterUniform(params.seed, request, position) * kept_weight;
  for (size_t i = 0; i < kept; ++i) {
    target -= weights[i];
    if (target < 0) return ids[i];
  }
  return ids[kept - 1];
}

}  // namespace kvring
