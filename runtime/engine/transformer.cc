// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/transformer.h"

#include <algorithm>

#include "kernels/elementwise.h"
#include "kernels/parallel.h"

namespace kvring {
namespace {

constexpr int64_t kRowsPerTask = 16;  // elementwise work is split by rows

template <class Body>
void ForRows(int64_t rows, const Body& body) {
  ParallelFor((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    const int64_t first = task * kRowsPerTask;
    body(first, std::min(rows - first, kRowsPerTask));
  });
}

}  // namespace

int64_t Transformer::BufferBytes(const ModelConfig& c, int64_t rows) {
  const int64_t q = int64_t{c.query_heads} * c.dk, k = int64_t{c.kv_heads} * c.dk,
                v = int64_t{c.kv_heads} * c.dv;
  const int64_t out = int64_t{c.query_heads} * c.dv;
  const int64_t floats = 2 * c.hidden + 2 * (q + k + v) + out + 3 * int64_t{c.ffn};
  return rows * floats * static_cast<int64_t>(sizeof(float));
}

void Transformer::Reserve(int64_t rows) {
  const ModelConfig& c = weights_.config();
  const auto grow = [](std::vector<float>& buffer, int64_t floats) {
    if (static_cast<int64_t>(buffer.size()) < floats) buffer.resize(floats);
  };
  const int64_t q = rows * c.query_heads * c.dk, k = rows * c.kv_heads * c.dk,
                v = rows * c.kv_heads * c.dv;
  grow(x_, rows * c.hidden);
  grow(h_, rows * c.hidden);
  grow(qkv_, q + k + v);
  grow(q_, q);
  grow(k_, k);
  grow(v_, v);
  grow(out_, rows * c.query_heads * c.dv);
  grow(gate_up_, rows * 2 * c.ffn);
  grow(act_, rows * c.ffn);
}

absl::StatusOr<std::span<const float>> Transformer::Forward(const Batch& batch, KvBackend& kv,
                                                            ActivationTap* tap) {
  const ModelConfig& c = weights_.config();
  const int64_t rows = batch.rows();
  Reserve(std::max<int64_t>(rows, 1));
  KVRING_RETURN_IF_ERROR(weights_.Embed(batch.ids, x_.data()));
  for (int layer = 0; layer < c.layers; ++layer) {
    KVRING_RETURN_IF_ERROR(Attention(layer, batch, kv, tap));
    FeedForward(layer, rows);
  }
  ForRows(rows, [&](int64_t first, int64_t count) {
    RmsNorm(x_.data() + first * c.hidden, weights_.output_norm().data(), c.rms_epsilon, count,
            c.hidden, h_.data() + first * c.hidden);
  });
  return std::span<const float>(h_.data(), rows * c.hidden);
}

absl::Status Transformer::Attention(int layer, const Batch& batch, KvBackend& kv,
                                    ActivationTap* tap) {
  const ModelConfig& c = weights_.config();
  const LayerWeights& w = weights_.layer(layer);
  const int64_t rows = batch.rows();
  const int64_t nq = int64_t{c.query_heads} * c.dk, nk = int64_t{c.kv_heads} * c.dk,
                nv = int64_t{c.kv_heads} * c.dv;
  ForRows(rows, [&](int64_t first, int64_t count) {
    RmsNorm(x_.data() + first * c.hidden, w.attention_norm.data(), c.rms_epsilon, count, c.hidden,
            h_.data() + first * c.hidden);
  });
  w.qkv->Forward(h_.data(), qkv_.data(), rows);
  ForRows(rows, [&](int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; ++r) {
      float* row = qkv_.data() + r * (nq + nk + nv);
      if (!w.qkv_bias.empty()) AddInPlace(row, w.qkv_bias.data(), nq + nk + nv);
      std::copy_n(row, nq, q_.data() + r * nq);
      std::copy_n(row + nq, nk, k_.data() + r * nk);
      std::copy_n(row + nq + nk, nv, v_.data() + r * nv);
    }
  });
  if (tap != nullptr) tap->OnKeysValues(layer, batch, k_.data(), v_.data());
  KVRING_RETURN_IF_ERROR(kv.Attend(layer, q_.data(), k_.data(), v_.data(), out_.data()));
  w.output->Forward(out_.data(), h_.data(), rows);
  AddInPlace(x_.data(), h_.data(), rows * c.hidden);
  return absl::OkStatus();
}

void Transformer::FeedForward(int layer, int64_t rows) {
  const ModelConfig& c = weights_.config();
  const LayerWeights& w = weights_.layer(layer);
  ForRows(rows, [&](int64_t first, int64_t count) {
    RmsNorm(x_.data() + first * c.hidden, w.ffn_norm.data(), c.rms_epsilon, count, c.hidden,
            h_.data() + first * c.hidden);
  });
  w.gate_up->Forward(h_.data(), gate_up_.data(), rows);
  ForRows(rows, [&](int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; ++r) {
      const float* gate = gate_up_.data() + r * 2 * c.ffn;
      SwiGlu(gate, gate + c.ffn, c.ffn, act_.data() + r * c.ffn);
    }
  });
  w.down->Forward(act_.data(), h_.data(), rows);
  AddInPlace(x_.data(), h_.data(), rows * c.hidden);
}

absl::Status Transformer::Logits(std::span<const float> hidden, int64_t rows, float* logits) const {
  if (weights_.output_head() == nullptr) {
    return absl::InternalError("logits were asked of a rank that did not load the output head");
  }
  weights_.output_head()->Forward(hidden.data(), logits, rows);
  return absl::OkStatus();
}

}  // namespace kvring
