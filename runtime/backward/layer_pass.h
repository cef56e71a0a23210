// SPDX-License-Identifier: Apache-2.0
// One layer of one window, forward and backward, with the buffers that all layers share. The residual stream belongs to
// the caller; a layer's inner numbers live until the next call. Not thread-safe; uses Threads() threads.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backward.h"
#include "runtime/backward/backward_pass.h"

namespace kvring {

class LayerPass {
 public:
  // weights outlive this.
  LayerPass(const Weights& weights, int64_t rows);

  // x: [rows][hidden], the layer's input, becomes its output. The sink sees keys and values; it may be empty.
  void Forward(int layer, float* x, const GradientSink& sink);

  // x: the layer's input; dx: the gradient at its output becomes that at its input, except for layer 0, below which
  // nobody asks. The sink sees the layer's gradients.
  absl::Status Backward(int layer, const float* x, float* dx, const GradientSink& sink);

  static int64_t BufferBytes(const ModelConfig& config, int64_t rows);

 private:
  void Project(int layer, const float* x);
  void SplitRow(int layer, int64_t row);
  void Attend(int layer, const float* x);
  void GateUp(int layer);
  absl::Status FeedForwardBackward(int layer, float* dx);
  absl::Status AttentionBackward(int layer, const float* dx);
  void UnrotateRow(int layer, int64_t row);

  const Weights& weights_;
  const ModelConfig& config_;
  const int64_t rows_;
  const int64_t nq_, nk_, nv_;  // numbers of a row: queries, keys, values
  CausalAttention attention_;
  std::vector<float> h_,
      mid_;                 // [rows][hidden]; mid_: the stream between attention and feed-forward
  std::vector<float> qkv_;  // [rows][nq + nk + nv]
  std::vector<float> q_, k_rotated_;         // after RoPE
  std::vector<float> k_, v_;                 // before RoPE
  std::vector<float> out_, gate_up_, wide_;  // [rows][query_heads dv], [rows][2 ffn], [rows][ffn]
  std::vector<float> d_out_, dq_, dk_, dv_;  // gradients, allocated by the first Backward
};

}  // namespace kvring
