// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/tc_calibrator.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <utility>

#include "kernels/codec/tc_adapt.h"
#include "kernels/codec/tc_bits.h"
#include "kernels/codec/tc_model.h"
#include "kernels/convert.h"
#include "kernels/parallel.h"
#include "runtime/calibrate/tc_basis.h"
#include "runtime/calibrate/tc_moments.h"

namespace kvring {
namespace {

// Bits at which the held-out check compares: the middle of what tc is used for.
constexpr double kCheckedRate = 2.5;
constexpr int64_t kRowsPerBlock = 256;  // of vectors gathered at a time

// One side of one (layer, KV head).
struct SideState {
  SideState(int dim, int texts, int64_t total) : sum(dim, 0.0), moments(dim, texts, total) {}
  std::vector<double> sum;  // pass 1
  int64_t rows = 0;
  std::vector<float> mean;
  TcMoments moments;
  TcBasis basis;
  std::string wrong;
};

struct LayerState {
  std::vector<SideState> sides;       // [heads] keys, then [heads] values
  int64_t forward = 0, backward = 0;  // windows seen
};

class TcCalibratorImpl : public TcCalibrator {
 public:
  TcCalibratorImpl(const TcCalibratorOptions& options, int texts);

  void ObserveForward(const LayerGradients& layer) override;
  absl::Status FinishForward() override;
  void ObserveBackward(const LayerGradients& layer) override;
  absl::Status Finish(CodecTables& tables,
                      const std::function<void(double share)>& progress) override;
  const std::vector<std::string>& table_ids() const override { return ids_; }
  const std::vector<std::string>& notes() const override { return notes_; }
  int64_t bytes() const override;

 private:
  const KvShape& shape() const { return options_.shape; }
  int sides() const { return 2 * shape().kv_heads; }
  bool IsKey(int side) const { return side < shape().kv_heads; }
  int Dim(int side) const { return IsKey(side) ? shape().dk : shape().dv; }
  void ObserveSide(const LayerGradients& layer, int side, int64_t window);
  void FitSide(int layer, int side);
  TcMatrices MatricesOf(const SideState& state, int left_out) const;
  bool RotationIsBetter(const SideState& state, const RopeTable* rope) const;
  void Write(CodecTables& tables) const;
  void NoteChoices();

  TcCalibratorOptions options_;
  int texts_;
  std::vector<LayerState> layers_;
  std::vector<std::string> ids_{kTcTableId}, notes_;
};

TcCalibratorImpl::TcCalibratorImpl(const TcCalibratorOptions& options, int texts)
    : options_(options), texts_(texts), layers_(options.shape.layers) {
  const auto windows = static_cast<int64_t>(options.text_of_window.size());
  for (LayerState& layer : layers_) {
    for (int side = 0; side < sides(); ++side)
      layer.sides.emplace_back(Dim(side), texts, windows * (options.window - kTcSinks));
  }
}

float RoundedToHalf(float x) { return HalfToFloat(FloatToHalfSaturated(x)); }

void TcCalibratorImpl::ObserveForward(const LayerGradients& layer) {
  CheckFinite("key", layer.layer, layer.k, layer.rows, int64_t{shape().kv_heads} * shape().dk);
  CheckFinite("value", layer.layer, layer.v, layer.rows, int64_t{shape().kv_heads} * shape().dv);
  if (!error_.ok()) return;
  LayerState& state = layers_[layer.layer];
  ++state.forward;
  ParallelFor(sides(), [&](int64_t side) {
    SideState& own = state.sides[side];
    const int dim = Dim(static_cast<int>(side)), heads = shape().kv_heads;
    const float* const x = IsKey(static_cast<int>(side)) ? layer.k : layer.v;
    for (int64_t row = kTcSinks; row < layer.rows; ++row, ++own.rows) {
      const float* const vector = x + (row * heads + side % heads) * dim;
      for (int i = 0; i < dim; ++i) own.sum[i] += RoundedToHalf(vector[i]);
    }
  });
}

absl::Status TcCalibratorImpl::FinishForward() {
  KVRING_RETURN_IF_ERROR(error_);
  for (LayerState& layer : layers_) {
    for (SideState& side : layer.sides) {
      for (const double sum : side.sum)
        side.mean.push_back(static_cast<float>(sum / std::max<int64_t>(side.rows, 1)));
    }
  }
  return absl::OkStatus();
}

void TcCalibratorImpl::ObserveBackward(const LayerGradients& layer) {
  const int64_t k_row = int64_t{shape().kv_heads} * shape().dk;
  const int64_t v_row = int64_t{shape().kv_heads} * shape().dv;
  CheckFinite("gradient of a key", layer.layer, layer.dk, layer.rows, k_row);
  CheckFinite("gradient of a value", layer.layer, layer.dv, layer.rows, v_row);
  if (!error_.ok()) return;
  const int64_t window = layers_[layer.layer].backward++;
  ParallelFor(sides(), [&](int64_t side) { ObserveSide(layer, static_cast<int>(side), window); });
}

// A rotation keeps the gradient's length, so that of the turned key is the gradient turned; RoPE's attention scale a makes it
// a times as long as the turned one, where RopeRotate multiplies by a once more.
void TcCalibratorImpl::ObserveSide(const LayerGradients& layer, int side, int64_t window) {
  SideState& state = layers_[layer.layer].sides[side];
  const int dim = Dim(side), heads = shape().kv_heads;
  const RopeTable& rope = *options_.rope[layer.layer];
  const float gradient_scale = 1.0f / (rope.attention_scale * rope.attention_scale);
  const float* const x_rows = IsKey(side) ? layer.k : layer.v;
  const float* const g_rows = IsKey(side) ? layer.dk : layer.dv;
  const auto windows = static_cast<int64_t>(options_.text_of_window.size());
  std::vector<float> x(kRowsPerBlock * dim), g(x.size()), angles(2 * rope.planes());
  for (int64_t first = kTcSinks; first < layer.rows; first += kRowsPerBlock) {
    const int64_t rows = std::min(kRowsPerBlock, layer.rows - first);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t from = ((first + r) * heads + side % heads) * dim;
      float *const to = &x[r * dim], *const to_g = &g[r * dim];
      for (int i = 0; i < dim; ++i) to[i] = RoundedToHalf(x_rows[from + i]) - state.mean[i];
      std::copy_n(g_rows + from, dim, to_g);
      if (!IsKey(side)) continue;
      RopeAngles(
          rope,
          ServedPosition(first + r, window, options_.window, windows, options_.served_context),
          angles.data());
      RopeRotate(rope, angles.data(), to);
      RopeRotate(rope, angles.data(), to_g);
      for (int i = 0; i < dim; ++i) to_g[i] *= gradient_scale;
    }
    state.moments.Add(options_.text_of_window[window], x.data(), g.data(), rows);
  }
}

TcMatrices TcCalibratorImpl::MatricesOf(const SideState& state, int left_out) const {
  TcMatrices matrices;
  matrices.dim = static_cast<int>(state.mean.size());
  matrices.mean.assign(state.mean.begin(), state.mean.end());
  matrices.covariance = state.moments.Covariance(left_out);
  matrices.metric = state.moments.Metric(left_out);
  return matrices;
}

// Of the texts one after the other, each coded with what the others say. Texts count alike, whatever their length.
bool TcCalibratorImpl::RotationIsBetter(const SideState& state, const RopeTable* rope) const {
  double tc = 0.0, rotation = 0.0;
  for (int text = 0; text < texts_; ++text) {
    const TcMatrices others = MatricesOf(state, text);
    TcMatrices own = others;
    own.covariance = state.moments.CovarianceOf(text);
    own.metric = state.moments.MetricOf(text);
    tc += ExpectedLoss(MakeTcBasis(others), own, kCheckedRate);
    rotation += ExpectedLoss(MakeRotationBasis(others, rope), own, kCheckedRate);
  }
  return rotation < tc;
}

void TcCalibratorImpl::FitSide(int layer, int side) {
  SideState& state = layers_[layer].sides[side];
  const RopeTable* const rope = IsKey(side) ? options_.rope[layer] : nullptr;
  state.moments.Finish();
  const TcMatrices all = MatricesOf(state, -1);
  const bool rotate = texts_ > 1 && RotationIsBetter(state, rope);
  state.basis = rotate ? MakeRotationBasis(all, rope) : MakeTcBasis(all);
  state.wrong = CheckBasis(state.basis, all.dim);
}

absl::Status TcCalibratorImpl::Finish(CodecTables& tables,
                                      const std::function<void(double share)>& progress) {
  KVRING_RETURN_IF_ERROR(error_);
  for (int layer = 0; layer < shape().layers; ++layer) {
    ParallelFor(sides(), [&](int64_t side) { FitSide(layer, static_cast<int>(side)); });
    for (int side = 0; side < sides(); ++side) {
      const SideState& state = layers_[layer].sides[side];
      const std::string where = absl::StrCat("layer ", layer, ", head ", side % shape().kv_heads,
                                             ", ", IsKey(side) ? "keys" : "values");
      if (!state.wrong.empty())
        return absl::InternalError(absl::StrCat("calibration of tc: ", where, ": ", state.wrong));
      if (state.basis.weight == 0.0)
        notes_.push_back(
            absl::StrCat("tc: ", where, ": no gradient reaches them; they get no bits"));
    }
    if (progress) progress((layer + 1.0) / shape().layers);
  }
  NoteChoices();
  Write(tables);
  return absl::OkStatus();
}

void TcCalibratorImpl::NoteChoices() {
  int keys = 0, values = 0;
  for (const LayerState& layer : layers_) {
    for (int side = 0; side < sides(); ++side)
      (IsKey(side) ? keys : values) += layer.sides[side].basis.rotated;
  }
  const int all = shape().layers * shape().kv_heads;
  if (texts_ > 1) {
    notes_.push_back(absl::StrCat("tc: on text that was left out, a plain rotation did better for ",
                                  keys, " of ", all, " heads' keys and ", values, " of ", all,
                                  " heads' values, and is kept there"));
  } else {
    notes_.push_back(
        "tc: one text, so nothing was left out to check it on; several (--text A --text B) make it "
        "safer on other text");
  }
}

void TcCalibratorImpl::Write(CodecTables& tables) const {
  const std::string prefix = absl::StrCat(kTcTableId, "/");
  const auto add = [&](const std::string& name, std::vector<int64_t> shape,
                       std::span<const float> values) {
    CodecTable& table = tables.tensors[prefix + name];
    table.shape = std::move(shape);
    table.values.insert(table.values.end(), values.begin(), values.end());
  };
  const int64_t layers = shape().layers, heads = shape().kv_heads;
  for (const LayerState& layer : layers_) {
    for (int i = 0; i < sides(); ++i) {
      const TcBasis& basis = layer.sides[i].basis;
      const std::string side = IsKey(i) ? "k" : "v";
      const int64_t dim = Dim(i);
      const float weight = static_cast<float>(basis.weight), rotated = basis.rotated ? 1.0f : 0.0f;
      add(side + "_mean", {layers, heads * dim}, basis.mean);
      add(side + "_basis", {layers, heads, dim * dim}, basis.basis);
      add(side + "_inverse", {layers, heads, dim * dim}, basis.inverse);
      add(side + "_lambda", {layers, heads * dim}, basis.lambda);
      add(side + "_weight", {layers, heads}, {&weight, 1});
      add(side + "_rot", {layers, heads}, {&rotated, 1});
    }
  }
  const float served = static_cast<float>(options_.served_context);
  add("served_context", {1}, {&served, 1});
}

int64_t TcCalibratorImpl::bytes() const {
  int64_t total = 0;
  for (const LayerState& layer : layers_) {
    for (const SideState& side : layer.sides) total += side.moments.bytes();
  }
  return total;
}

}  // namespace

int64_t ServedPosition(int64_t row, int64_t w, int64_t window, int64_t windows, int64_t served) {
  // Windows fill the gaps between each other's rows.
  return served <= window ? row : (row * windows + w) * served / (window * windows);
}

bool TcCalibrator::Makes(const std::string& codec) {
  const std::string name = codec.substr(0, codec.find(':'));
  return name == kTcTableId || ParseTcRate(name) > 0;
}

absl::StatusOr<std::unique_ptr<TcCalibrator>> TcCalibrator::Create(
    const TcCalibratorOptions& options) {
  const KvShape& shape = options.shape;
  if (shape.layers < 1 || static_cast<int>(options.rope.size()) != shape.layers) {
    return absl::InvalidArgumentError(absl::StrCat("calibration of ", shape.layers, " layers with ",
                                                   options.rope.size(), " frequency tables"));
  }
  // A covariance of d channels wants more than d vectors; one window of them is the least.
  const int64_t vectors =
      static_cast<int64_t>(options.text_of_window.size()) * (options.window - kTcSinks);
  if (vectors < 2 * std::max(shape.dk, shape.dv)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tc needs at least ", 2 * std::max(shape.dk, shape.dv), " tokens; ",
                     options.text_of_window.size(), " windows of ", options.window, " have fewer"));
  }
  // Texts that no window fell into are not there: 0, 1, .. in the order of their numbers.
  TcCalibratorOptions used = options;
  const std::set<int> texts(options.text_of_window.begin(), options.text_of_window.end());
  for (int& text : used.text_of_window)
    text = static_cast<int>(std::distance(texts.begin(), texts.find(text)));
  return std::make_unique<TcCalibratorImpl>(used, static_cast<int>(texts.size()));
}

}  // namespace kvring
