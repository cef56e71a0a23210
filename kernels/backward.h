// SPDX-License-Identifier: Apache-2.0
// The numeric pieces of a transformer's backward pass: data gradients only, fp32, one window at positions 0..rows-1.
// Work is split over independent outputs alone, so bits never depend on Threads(). The plain forms in double are in
// kernels/ref/backward_ref.h.
#pragma once

#include <cstdint>
#include <vector>

namespace kvring {

// dx[r] += gradient of RmsNorm (elementwise.h) with respect to x[r], given dy; [rows][n]. With s = 1/sqrt(mean x^2 + e):
// s (w dy) - x s^3 / n <w dy, x>. Inner sums in double.
void RmsNormBackward(const float* x, const float* weight, float epsilon, const float* dy,
                     int64_t rows, int64_t n, float* dx);

// Rows [gate, up] of 2 ffn numbers become their gradients, given dy [rows][ffn] of SwiGlu's output.
void SwiGluBackward(float* gate_up, const float* dy, int64_t rows, int64_t ffn);

// Row r of logits becomes weight * (softmax(logits[r]) - onehot(targets[r])), and losses[r] the cross-entropy in nats,
// log sum exp - logit; [rows][vocab]. Targets in [0, vocab).
void CrossEntropyBackward(float* logits, const int32_t* targets, float weight, int64_t rows,
                          int64_t vocab, double* losses);

struct CausalShape {
  int64_t rows = 0;
  int query_heads = 0, kv_heads = 0;
  int dk = 0, dv = 0;
  int group() const { return query_heads / kv_heads; }
};

// Full causal attention of one window, scores scaled by 1/sqrt(dk). Forward prepares what Backward of the same window
// reads: keys and values in blocks, the normalizer of every query. Not thread-safe; uses Threads() threads.
class CausalAttention {
 public:
  explicit CausalAttention(const CausalShape& shape);

  // q: [rows][query_heads][dk], k: [rows][kv_heads][dk], both after RoPE; v: [rows][kv_heads][dv];
  // out: [rows][query_heads][dv].
  void Forward(const float* q, const float* k, const float* v, float* out);

  // Gradients with respect to the three inputs, in their shapes, given d_out. q and out are those of the last Forward. The
  // gradient of a KV head is the sum over its query heads in ascending order.
  void Backward(const float* q, const float* out, const float* d_out, float* dq, float* dk,
                float* dv);

  static int64_t BufferBytes(const CausalShape& shape);

 private:
  void PackKeysValues(const float* k, const float* v, int64_t task);
  void ForwardRows(const float* q, float* out, int64_t task);
  void BackwardHead(const float* q, const float* out, const float* d_out, int head, float* dq);
  void SumGroup(const std::vector<float>& parts, int wide, int d, int64_t block, float* sum) const;

  CausalShape shape_;
  int64_t blocks_ = 0;           // of 64 positions
  int wide_k_ = 0, wide_v_ = 0;  // head sizes rounded up to whole registers; what is added is zeros
  // [kv_heads][blocks] tiles: keys [64][wide_k] and turned [wide_k][64], values likewise.
  std::vector<float> k_, kt_, v_, vt_;
  std::vector<float> log_sum_;              // [query_heads][rows], base 2
  std::vector<float> dk_parts_, dv_parts_;  // [query_heads][blocks][64][wide]
};

}  // namespace kvring
