// SPDX-License-Identifier: Apache-2.0
#include "runtime/backward/layer_pass.h"

#include <algorithm>

#include "kernels/elementwise.h"
#include "kernels/parallel.h"

namespace kvring {
namespace {

constexpr int64_t kRowsPerTask = 16;

template <class Body>
void ForEachRow(int64_t rows, const Body& body) {
  ParallelFor((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    const int64_t first = task * kRowsPerTask, last = std::min(rows, first + kRowsPerTask);
    for (int64_t r = first; r < last; ++r) body(r);
  });
}

absl::Status ToStatus(const Error& error) {
  return error ? absl::InternalError(error.message) : absl::OkStatus();
}

CausalShape AttentionShape(const ModelConfig& c, int64_t rows) {
  return {rows, c.query_heads, c.kv_heads, c.dk, c.dv};
}

// cos and sin of one position, or of its transpose: the gradient of a rotation times s is the opposite rotation times s.
std::vector<float> Angles(const RopeTable& rope, int64_t position, bool transpose) {
  std::vector<float> cos_sin(static_cast<size_t>(2 * rope.planes()));
  RopeAngles(rope, position, cos_sin.data());
  for (size_t i = 1; transpose && i < cos_sin.size(); i += 2) cos_sin[i] = -cos_sin[i];
  return cos_sin;
}

void RotateHeads(const RopeTable& rope, const std::vector<float>& cos_sin, int heads, float* x) {
  for (int head = 0; head < heads; ++head)
    RopeRotate(rope, cos_sin.data(), x + head * rope.head_dim);
}

}  // namespace

LayerPass::LayerPass(const Weights& weights, int64_t rows)
    : weights_(weights),
      config_(weights.config()),
      rows_(rows),
      nq_(int64_t{config_.query_heads} * config_.dk),
      nk_(int64_t{config_.kv_heads} * config_.dk),
      nv_(int64_t{config_.kv_heads} * config_.dv),
      attention_(AttentionShape(config_, rows)) {
  for (std::vector<float>* x : {&h_, &mid_}) x->resize(rows * config_.hidden);
  qkv_.resize(rows * (nq_ + nk_ + nv_));
  q_.resize(rows * nq_);
  for (std::vector<float>* x : {&k_, &k_rotated_}) x->resize(rows * nk_);
  v_.resize(rows * nv_);
  out_.resize(rows * config_.query_heads * config_.dv);
  gate_up_.resize(rows * 2 * config_.ffn);
  wide_.resize(rows * config_.ffn);
}

int64_t LayerPass::BufferBytes(const ModelConfig& c, int64_t rows) {
  const int64_t q = int64_t{c.query_heads} * c.dk, out = int64_t{c.query_heads} * c.dv;
  const int64_t k = int64_t{c.kv_heads} * c.dk, v = int64_t{c.kv_heads} * c.dv;
  const int64_t floats =
      2 * int64_t{c.hidden} + (q + k + v) + 2 * q + 3 * k + 2 * v + 2 * out + 3 * int64_t{c.ffn};
  return rows * floats * static_cast<int64_t>(sizeof(float)) +
         CausalAttention::BufferBytes(AttentionShape(c, rows));
}

// Queries and keys after RoPE, keys before it, values.
void LayerPass::Project(int layer, const float* x) {
  const LayerWeights& w = weights_.layer(layer);
  RmsNorm(x, w.attention_norm.data(), config_.rms_epsilon, rows_, config_.hidden, h_.data());
  w.qkv->Forward(h_.data(), qkv_.data(), rows_);
  ForEachRow(rows_, [&](int64_t r) { SplitRow(layer, r); });
}

void LayerPass::SplitRow(int layer, int64_t r) {
  const std::vector<float>& bias = weights_.layer(layer).qkv_bias;
  const RopeTable& rope = config_.rope[layer];
  const std::vector<float> cos_sin = Angles(rope, r, false);
  float* row = qkv_.data() + r * (nq_ + nk_ + nv_);
  if (!bias.empty()) AddInPlace(row, bias.data(), nq_ + nk_ + nv_);
  std::copy_n(row, nq_, q_.data() + r * nq_);
  std::copy_n(row + nq_, nk_, k_.data() + r * nk_);
  std::copy_n(row + nq_, nk_, k_rotated_.data() + r * nk_);
  std::copy_n(row + nq_ + nk_, nv_, v_.data() + r * nv_);
  RotateHeads(rope, cos_sin, config_.query_heads, q_.data() + r * nq_);
  RotateHeads(rope, cos_sin, config_.kv_heads, k_rotated_.data() + r * nk_);
}

// mid = x + attention.
void LayerPass::Attend(int layer, const float* x) {
  attention_.Forward(q_.data(), k_rotated_.data(), v_.data(), out_.data());
  weights_.layer(layer).output->Forward(out_.data(), mid_.data(), rows_);
  const int64_t n = config_.hidden;
  ForEachRow(rows_, [&](int64_t r) { AddInPlace(mid_.data() + r * n, x + r * n, n); });
}

void LayerPass::GateUp(int layer) {
  const LayerWeights& w = weights_.layer(layer);
  RmsNorm(mid_.data(), w.ffn_norm.data(), config_.rms_epsilon, rows_, config_.hidden, h_.data());
  w.gate_up->Forward(h_.data(), gate_up_.data(), rows_);
}

void LayerPass::Forward(int layer, float* x, const GradientSink& sink) {
  Project(layer, x);
  if (sink) sink({layer, rows_, k_.data(), v_.data(), nullptr, nullptr});
  Attend(layer, x);
  GateUp(layer);
  const int64_t ffn = config_.ffn, n = config_.hidden;
  ForEachRow(rows_, [&](int64_t r) {
    const float* gate = gate_up_.data() + r * 2 * ffn;
    SwiGlu(gate, gate + ffn, ffn, wide_.data() + r * ffn);
  });
  weights_.layer(layer).down->Forward(wide_.data(), x, rows_);
  ForEachRow(rows_, [&](int64_t r) { AddInPlace(x + r * n, mid_.data() + r * n, n); });
}

absl::Status LayerPass::Backward(int layer, const float* x, float* dx, const GradientSink& sink) {
  const LayerWeights& w = weights_.layer(layer);
  Project(layer, x);
  Attend(layer, x);
  GateUp(layer);
  KVRING_RETURN_IF_ERROR(FeedForwardBackward(layer, dx));
  KVRING_RETURN_IF_ERROR(AttentionBackward(layer, dx));
  sink({layer, rows_, k_.data(), v_.data(), dk_.data(), dv_.data()});
  if (layer == 0) return absl::OkStatus();
  KVRING_RETURN_IF_ERROR(ToStatus(w.qkv->BackwardData(qkv_.data(), h_.data(), rows_)));
  RmsNormBackward(x, w.attention_norm.data(), config_.rms_epsilon, h_.data(), rows_, config_.hidden,
                  dx);
  return absl::OkStatus();
}

// dx += gradient through the feed-forward branch.
absl::Status LayerPass::FeedForwardBackward(int layer, float* dx) {
  const LayerWeights& w = weights_.layer(layer);
  KVRING_RETURN_IF_ERROR(ToStatus(w.down->BackwardData(dx, wide_.data(), rows_)));
  SwiGluBackward(gate_up_.data(), wide_.data(), rows_, config_.ffn);
  KVRING_RETURN_IF_ERROR(ToStatus(w.gate_up->BackwardData(gate_up_.data(), h_.data(), rows_)));
  RmsNormBackward(mid_.data(), w.ffn_norm.data(), config_.rms_epsilon, h_.data(), rows_,
                  config_.hidden, dx);
  return absl::OkStatus();
}

// dk, dv of the layer, and in qkv_ the gradient at the output of its first linear layer (a bias only adds).
absl::Status LayerPass::AttentionBackward(int layer, const float* dx) {
  d_out_.resize(out_.size());
  dq_.resize(q_.size());
  dk_.resize(k_.size());
  dv_.resize(v_.size());
  KVRING_RETURN_IF_ERROR(
      ToStatus(weights_.layer(layer).output->BackwardData(dx, d_out_.data(), rows_)));
  attention_.Backward(q_.data(), out_.data(), d_out_.data(), dq_.data(), dk_.data(), dv_.data());
  ForEachRow(rows_, [&](int64_t r) { UnrotateRow(layer, r); });
  return absl::OkStatus();
}

void LayerPass::UnrotateRow(int layer, int64_t r) {
  const RopeTable& rope = config_.rope[layer];
  const std::vector<float> cos_sin = Angles(rope, r, true);
  RotateHeads(rope, cos_sin, config_.query_heads, dq_.data() + r * nq_);
  RotateHeads(rope, cos_sin, config_.kv_heads, dk_.data() + r * nk_);
  float* row = qkv_.data() + r * (nq_ + nk_ + nv_);
  std::copy_n(dq_.data() + r * nq_, nq_, row);
  std::copy_n(dk_.data() + r * nk_, nk_, row + nq_);
  std::copy_n(dv_.data() + r * nv_, nv_, row + nq_ + nk_);
}

}  // namespace kvring
