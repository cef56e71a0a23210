// SPDX-License-Identifier: Apache-2.0
// Gradients of the mean next-token loss with respect to keys (before RoPE) and values, layer by layer: the data path of a
// backward pass, no weight gradients (kvquant spec 3.1). Exact fp32 attention over one window, no KV cache.
//
// Memory: the residual stream at every layer's input is kept ([layers][rows][hidden]), everything else of a layer is formed
// anew when its turn comes; nothing outlives a window. Bits do not depend on the thread count.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "runtime/base/status.h"
#include "runtime/model/weights.h"

namespace kvring {

// One layer of one window, valid during the call. k, dk: [rows][kv_heads][dk], before RoPE; v, dv: [rows][kv_heads][dv].
// dk and dv are null in a forward pass.
struct LayerGradients {
  int layer = 0;
  int64_t rows = 0;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* dk = nullptr;
  const float* dv = nullptr;
};
using GradientSink = std::function<void(const LayerGradients&)>;

class BackwardPass {
 public:
  // weights: loaded in f32 with the output head and keep_for_backward; FAILED_PRECONDITION otherwise. Positions of a window
  // are 0..rows-1.
  static absl::StatusOr<std::unique_ptr<BackwardPass>> Create(
      std::shared_ptr<const Weights> weights);
  virtual ~BackwardPass() = default;

  // Forward only: the sink sees layers 0, 1, .. with keys and values. No output head.
  virtual absl::Status Forward(std::span<const int32_t> ids, const GradientSink& sink) = 0;

  // Forward and backward of the mean cross-entropy over the window's rows - 1 predictions, which is returned (nats). The sink
  // sees layers last to first. At least 2 ids.
  virtual absl::StatusOr<double> Run(std::span<const int32_t> ids, const GradientSink& sink) = 0;

  // Bytes of the buffers for windows of `rows`.
  static int64_t BufferBytes(const ModelConfig& config, int64_t rows);
};

}  // namespace kvring
