// SPDX-License-Identifier: Apache-2.0
#include "runtime/backward/backward_pass.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "kernels/backward.h"
#include "kernels/elementwise.h"
#include "runtime/backward/layer_pass.h"

namespace kvring {
namespace {

// Predictions whose logits exist at a time: [rows][vocab] of a whole window would be the largest buffer by far.
constexpr int64_t kHeadRows = 128;

// Packed f32 weights, and again for the backward product: 8 bytes a weight, more when panels are padded.
bool IsReady(const Linear& linear) {
  return !linear.BackwardData(nullptr, nullptr, 0) &&
         linear.bytes() >= 8 * linear.in() * linear.out();
}

absl::Status CheckWeights(const Weights& weights) {
  const auto refuse = [](const std::string& what) {
    return absl::FailedPreconditionError(
        absl::StrCat("a backward pass needs weights loaded in f32 with the output head and "
                     "keep_for_backward; ",
                     what));
  };
  if (weights.output_head() == nullptr) return refuse("there is no output head");
  if (!IsReady(*weights.output_head())) return refuse("the output head is not so");
  for (int i = 0; i < weights.config().layers; ++i) {
    const LayerWeights& w = weights.layer(i);
    for (const Linear* linear : {w.qkv.get(), w.output.get(), w.gate_up.get(), w.down.get()}) {
      if (!IsReady(*linear)) return refuse(absl::StrCat("layer ", i, " is not so"));
    }
  }
  return absl::OkStatus();
}

class WindowPass : public BackwardPass {
 public:
  explicit WindowPass(std::shared_ptr<const Weights> weights)
      : weights_(std::move(weights)), config_(weights_->config()) {}

  absl::Status Forward(std::span<const int32_t> ids, const GradientSink& sink) override;
  absl::StatusOr<double> Run(std::span<const int32_t> ids, const GradientSink& sink) override;

 private:
  absl::Status Start(std::span<const int32_t> ids, int64_t least);
  absl::StatusOr<double> Head(std::span<const int32_t> ids);
  int64_t StreamFloats() const { return rows_ * config_.hidden; }

  const std::shared_ptr<const Weights> weights_;
  const ModelConfig& config_;
  int64_t rows_ = 0;
  std::optional<LayerPass> pass_;  // for windows of rows_
  std::vector<float> x_;           // [rows][hidden]: the stream, later its gradient
  std::vector<float> stream_;      // [layers][rows][hidden]: every layer's input
  std::vector<float> logits_;      // [kHeadRows][vocab]
};

absl::Status WindowPass::Start(std::span<const int32_t> ids, int64_t least) {
  const auto rows = static_cast<int64_t>(ids.size());
  if (rows < least) {
    return absl::InvalidArgumentError(
        absl::StrCat("a window of ", rows, " ids; at least ", least, " are needed"));
  }
  for (const int32_t id : ids) {
    if (id < 0 || id >= config_.vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("id ", id, " is not in the vocabulary of ", config_.vocab));
    }
  }
  if (rows != rows_) pass_.emplace(*weights_, rows);
  rows_ = rows;
  x_.resize(StreamFloats());
  return weights_->Embed(ids, x_.data());
}

absl::Status WindowPass::Forward(std::span<const int32_t> ids, const GradientSink& sink) {
  KVRING_RETURN_IF_ERROR(Start(ids, 1));
  for (int i = 0; i < config_.layers; ++i) pass_->Forward(i, x_.data(), sink);
  return absl::OkStatus();
}

absl::StatusOr<double> WindowPass::Run(std::span<const int32_t> ids, const GradientSink& sink) {
  KVRING_RETURN_IF_ERROR(Start(ids, 2));
  stream_.resize(config_.layers * StreamFloats());
  for (int i = 0; i < config_.layers; ++i) {
    std::copy(x_.begin(), x_.end(), stream_.begin() + i * StreamFloats());
    pass_->Forward(i, x_.data(), nullptr);
  }
  KVRING_ASSIGN_OR_RETURN(const double loss, Head(ids));
  for (int i = config_.layers - 1; i >= 0; --i) {
    KVRING_RETURN_IF_ERROR(
        pass_->Backward(i, stream_.data() + i * StreamFloats(), x_.data(), sink));
  }
  return loss;
}

// The mean loss; x_ becomes its gradient. The last row predicts nothing that is known.
absl::StatusOr<double> WindowPass::Head(std::span<const int32_t> ids) {
  const int64_t n = config_.hidden, predictions = rows_ - 1;
  const Linear& head = *weights_->output_head();
  const float* norm = weights_->output_norm().data();
  const auto weight = static_cast<float>(1.0 / static_cast<double>(predictions));
  std::vector<float> h(kHeadRows * n), dx(StreamFloats(), 0.0f);
  std::vector<double> losses(predictions);
  logits_.resize(kHeadRows * config_.vocab);
  for (int64_t first = 0; first < predictions; first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, predictions - first);
    const float* x = x_.data() + first * n;
    RmsNorm(x, norm, config_.rms_epsilon, count, n, h.data());
    head.Forward(h.data(), logits_.data(), count);
    CrossEntropyBackward(logits_.data(), ids.data() + first + 1, weight, count, config_.vocab,
                         losses.data() + first);
    if (const Error error = head.BackwardData(logits_.data(), h.data(), count)) {
      return absl::InternalError(error.message);
    }
    RmsNormBackward(x, norm, config_.rms_epsilon, h.data(), count, n, dx.data() + first * n);
  }
  x_ = std::move(dx);
  double sum = 0;
  for (const double loss : losses) sum += loss;
  if (std::isfinite(sum)) return sum / static_cast<double>(predictions);
  return absl::InternalError("the loss of a window is not finite: the model overflows fp32");
}

}  // namespace

absl::StatusOr<std::unique_ptr<BackwardPass>> BackwardPass::Create(
    std::shared_ptr<const Weights> weights) {
  KVRING_RETURN_IF_ERROR(CheckWeights(*weights));
  return std::make_unique<WindowPass>(std::move(weights));
}

int64_t BackwardPass::BufferBytes(const ModelConfig& config, int64_t rows) {
  const int64_t stream = rows * config.hidden * (int64_t{config.layers} + 2);
  const int64_t head = kHeadRows * (int64_t{config.vocab} + config.hidden);
  return (stream + head) * static_cast<int64_t>(sizeof(float)) +
         LayerPass::BufferBytes(config, rows);
}

}  // namespace kvring
