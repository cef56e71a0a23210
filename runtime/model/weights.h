// SPDX-License-Identifier: Apache-2.0
// A model's weights, ready to run: norms as fp32, linear layers packed for this CPU, the embedding's rows read from the file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/linear.h"
#include "runtime/base/status.h"
#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"

namespace kvring {

struct LayerWeights {
  std::vector<float> attention_norm;  // [hidden]
  std::vector<float> ffn_norm;        // [hidden]
  std::unique_ptr<Linear>
      qkv;  // out = (query_heads dk) + (kv_heads dk) + (kv_heads dv), in that order
  std::vector<float> qkv_bias;      // the same length, or empty
  std::unique_ptr<Linear> output;   // in = query_heads dv
  std::unique_ptr<Linear> gate_up;  // out = 2 ffn: gate, then up
  std::unique_ptr<Linear> down;     // in = ffn
};

struct WeightsOptions {
  LinearMath math = LinearMath::kF32;
  bool output_head = true;  // only the rank that computes logits needs it
  bool keep_for_backward = false;
};

// The form of the blocks that most numbers of the linear layers have. None when a layer holds plain numbers: rounding those
// to blocks would lose more than the activations' rounding.
std::optional<BlockForm> FileBlocks(const GgufFile& file, const ModelConfig& config);

// Immutable and thread-safe; ranks that are threads share one.
class Weights {
 public:
  static absl::StatusOr<std::shared_ptr<const Weights>> Load(std::shared_ptr<const GgufFile> file,
                                                             const ModelConfig& config,
                                                             const WeightsOptions& options);
  // out: [ids][hidden]; ids in [0, vocab). Rows are read from the file, which processes of a host share in its cache: DATA_LOSS when
  // the file has become shorter since it was opened (gguf.h).
  absl::Status Embed(std::span<const int32_t> ids, float* out) const;

  const ModelConfig& config() const { return config_; }
  const LayerWeights& layer(int i) const { return layers_[i]; }
  const std::vector<float>& output_norm() const { return output_norm_; }
  const Linear* output_head() const { return output_head_.get(); }  // null where not asked for
  int64_t bytes() const { return bytes_; }                          // packed weights in memory

 private:
  Weights() = default;
  std::shared_ptr<const GgufFile> file_;
  ModelConfig config_;
  const GgufTensor* embedding_ = nullptr;
  std::vector<LayerWeights> layers_;
  std::vector<float> output_norm_;
  std::unique_ptr<Linear> output_head_;
  int64_t bytes_ = 0;
};

}  // namespace kvring
