// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/backward/double_model.h"

#include <algorithm>
#include <cmath>

#include "runtime/model/tensor_reader.h"

namespace kvring {

DoubleModel::Doubles DoubleModel::Tensor(const std::string& name) const {
  for (const auto& [known, numbers] : tensors_) {
    if (known == name) return numbers;
  }
  Doubles numbers;
  if (file_.FindTensor(name) != nullptr) {
    const std::vector<float> floats = ReadFloats(file_, {name}).value();
    numbers.assign(floats.begin(), floats.end());
  }
  tensors_.emplace_back(name, numbers);
  return numbers;
}

DoubleModel::Doubles DoubleModel::Apply(const std::string& name, const Doubles& x,
                                        int64_t in) const {
  const Doubles w = Tensor(name + ".weight"), bias = Tensor(name + ".bias");
  const int64_t out = static_cast<int64_t>(w.size()) / in;
  const int64_t rows = static_cast<int64_t>(x.size()) / in;
  Doubles y(static_cast<size_t>(rows * out));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = bias.empty() ? 0.0 : bias[o];
      for (int64_t i = 0; i < in; ++i) sum += x[r * in + i] * w[o * in + i];
      y[r * out + o] = sum;
    }
  }
  return y;
}

DoubleModel::Doubles DoubleModel::Norm(const std::string& name, const Doubles& x) const {
  const Doubles w = Tensor(name);
  const size_t n = w.size();
  Doubles y(x.size());
  for (size_t r = 0; r < x.size(); r += n) {
    double squares = 0;
    for (size_t i = 0; i < n; ++i) squares += x[r + i] * x[r + i];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + config_.rms_epsilon);
    for (size_t i = 0; i < n; ++i) y[r + i] = x[r + i] * scale * w[i];
  }
  return y;
}

void DoubleModel::Rotate(int layer, int heads, Doubles& x) const {
  const RopeTable& rope = config_.rope[layer];
  for (size_t at = 0; at < x.size(); at += rope.head_dim) {
    const auto position = static_cast<double>(at / (static_cast<size_t>(heads) * rope.head_dim));
    for (int p = 0; p < rope.planes(); ++p) {
      const double angle = position * rope.inv_freq[p];
      const double c = std::cos(angle) * rope.attention_scale;
      const double s = std::sin(angle) * rope.attention_scale;
      double &a = x[at + rope.First(p)], &b = x[at + rope.Second(p)];
      const double turned = a * c - b * s;
      b = a * s + b * c;
      a = turned;
    }
  }
}

DoubleModel::Doubles DoubleModel::Attend(const Doubles& q, const Doubles& k,
                                         const Doubles& v) const {
  const int dk = config_.dk, dv = config_.dv, heads = config_.query_heads, kv = config_.kv_heads;
  const int64_t rows = static_cast<int64_t>(q.size()) / (heads * dk);
  Doubles out(static_cast<size_t>(rows * heads * dv));
  for (int64_t at = 0; at < rows * heads; ++at) {
    const int64_t row = at / heads, group = at % heads / (heads / kv);
    Doubles p(static_cast<size_t>(row + 1));
    double sum = 0;
    for (int64_t j = 0; j <= row; ++j) {
      double score = 0;
      for (int i = 0; i < dk; ++i) score += q[at * dk + i] * k[(j * kv + group) * dk + i];
      sum += p[j] = std::exp(score / std::sqrt(static_cast<double>(dk)));
    }
    for (int64_t j = 0; j <= row; ++j) {
      for (int i = 0; i < dv; ++i) out[at * dv + i] += p[j] / sum * v[(j * kv + group) * dv + i];
    }
  }
  return out;
}

double DoubleModel::Loss(std::span<const int32_t> ids, const Nudge& nudge) const {
  const ModelConfig& c = config_;
  const Doubles table = Tensor("token_embd.weight");
  Doubles x;
  for (const int32_t id : ids) {
    x.insert(x.end(), table.begin() + id * c.hidden, table.begin() + (id + 1) * c.hidden);
  }
  const auto add = [](Doubles& to, const Doubles& from) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  };
  for (int layer = 0; layer < c.layers; ++layer) {
    const std::string blk = "blk." + std::to_string(layer) + ".";
    Doubles h = Norm(blk + "attn_norm.weight", x);
    Doubles q = Apply(blk + "attn_q", h, c.hidden), k = Apply(blk + "attn_k", h, c.hidden);
    Doubles v = Apply(blk + "attn_v", h, c.hidden);
    if (layer == nudge.layer) (nudge.value ? v : k)[nudge.element] += nudge.delta;
    Rotate(layer, c.query_heads, q);
    Rotate(layer, c.kv_heads, k);
    add(x, Apply(blk + "attn_output", Attend(q, k, v), c.query_heads * c.dv));
    h = Norm(blk + "ffn_norm.weight", x);
    Doubles gate = Apply(blk + "ffn_gate", h, c.hidden);
    const Doubles up = Apply(blk + "ffn_up", h, c.hidden);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
    add(x, Apply(blk + "ffn_down", gate, c.ffn));
  }
  const Doubles logits =
      Apply(c.tied_output ? "token_embd" : "output", Norm("output_norm.weight", x), c.hidden);
  double loss = 0;
  for (size_t r = 0; r + 1 < ids.size(); ++r) {
    double sum = 0;
    for (int i = 0; i < c.vocab; ++i) sum += std::exp(logits[r * c.vocab + i]);
    loss += std::log(sum) - logits[r * c.vocab + ids[r + 1]];
  }
  return loss / static_cast<double>(ids.size() - 1);
}

double DoubleModel::Gradient(std::span<const int32_t> ids, Nudge nudge, double* error) const {
  const auto slope = [&](double h) {
    nudge.delta = h;
    const double up = Loss(ids, nudge);
    nudge.delta = -h;
    return (up - Loss(ids, nudge)) / (2 * h);
  };
  const double wide = slope(1e-3), narrow = slope(5e-4);
  *error = std::fabs(wide - narrow);
  return (4 * narrow - wide) / 3;
}

}  // namespace kvring
