// SPDX-License-Identifier: Apache-2.0
// The forward pass of a Llama-family model over the rows of one step. Reads like the model's description: everything that
// knows about caches, ranks and sequences is behind KvBackend.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/model/weights.h"

namespace kvring {

// Rows that this rank computes in a step: tokens of one or many sequences.
struct Batch {
  std::vector<int32_t> ids;        // [rows]
  std::vector<int64_t> positions;  // [rows] within their sequences
  int64_t rows() const { return static_cast<int64_t>(ids.size()); }
};

// Attention of one layer for the batch's rows, keys and values of which are stored on the way.
// q: [rows][query_heads][dk], k: [rows][kv_heads][dk], v: [rows][kv_heads][dv], all before RoPE.
// out: [rows][query_heads][dv].
class KvBackend {
 public:
  virtual ~KvBackend() = default;
  virtual absl::Status Attend(int layer, const float* q, const float* k, const float* v,
                              float* out) = 0;
};

// Sees what calibration needs: keys before RoPE and values of each layer, after Attend's arguments are formed.
class ActivationTap {
 public:
  virtual ~ActivationTap() = default;
  virtual void OnKeysValues(int layer, const Batch& batch, const float* k, const float* v) = 0;
};

// Buffers of a step, kept between steps. Sizes follow the largest batch seen.
class Transformer {
 public:
  explicit Transformer(const Weights& weights) : weights_(weights) {}

  // Final hidden rows [rows][hidden] after the output norm, valid until the next call. A rank without rows still
  // takes part in every layer's Attend. tap may be null.
  absl::StatusOr<std::span<const float>> Forward(const Batch& batch, KvBackend& kv,
                                                 ActivationTap* tap);

  // logits: [rows][vocab] of normed hidden rows; only where the output head was loaded.
  absl::Status Logits(std::span<const float> hidden, int64_t rows, float* logits) const;

  // Bytes of the buffers for a batch of `rows`: what a memory plan counts.
  static int64_t BufferBytes(const ModelConfig& config, int64_t rows);

 private:
  void Reserve(int64_t rows);
  absl::Status Attention(int layer, const Batch& batch, KvBackend& kv, ActivationTap* tap);
  void FeedForward(int layer, int64_t rows);

  const Weights& weights_;
  std::vector<float> x_, h_;  // [rows][hidden] residual stream, normed or projected rows
  std::vector<float> qkv_, q_, k_, v_, out_;  // projections, split per head
  std::vector<float> gate_up_, act_;          // [rows][2 ffn], [rows][ffn]
};

}  // namespace kvring
