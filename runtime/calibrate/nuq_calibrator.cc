// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/nuq_calibrator.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "kernels/convert.h"
#include "kernels/parallel.h"
#include "runtime/calibrate/moment_match.h"
#include "runtime/calibrate/nuq_plan.h"

namespace kvring {
namespace {

constexpr int64_t kRowsPerTask = 64;

std::vector<float> RoundedToHalf(const float* x, int64_t n) {
  std::vector<Half> halves(n);
  std::vector<float> rounded(n);
  FloatToHalfSaturated(x, n, halves.data());
  HalfToFloat(halves.data(), n, rounded.data());
  return rounded;
}

// Rows of one layer and window in every form that some rule looks at.
struct LayerRows {
  int64_t rows = 0;
  std::vector<float> k, k_rotated, v;                 // rounded to fp16
  const float *dk = nullptr, *dv = nullptr;           // gradients
  std::vector<float> dk_rotated;                      // of rotated keys, up to a factor
  std::map<RankRule, std::vector<int32_t>> extremes;  // [rows][2 m]

  const float* Rows(KvSide side, bool post_rope) const {
    return side == KvSide::kValue ? v.data() : post_rope ? k_rotated.data() : k.data();
  }
  const float* Gradients(KvSide side, bool post_rope) const {
    return side == KvSide::kValue ? dv : post_rope ? dk_rotated.data() : dk;
  }
};

struct LayerState {
  std::map<TailRule, ChannelTails> tails;
  std::map<NormalizationRule, NormalizedSide> sides;
  // Centroids by fit and number of clusters; decode tables of those that Q-Norm moves.
  std::map<FitRule, std::map<int, std::vector<float>>> centroids, decoded;
};

class NuqCalibratorImpl : public NuqCalibrator {
 public:
  NuqCalibratorImpl(const NuqCalibratorOptions& options, NuqPlan plan);

  void ObserveForward(const LayerGradients& layer) override;
  absl::Status FinishForward() override;
  void ObserveBackward(const LayerGradients& layer) override;
  absl::Status Finish(CodecTables& tables,
                      const std::function<void(double share)>& progress) override;
  const std::vector<std::string>& table_ids() const override { return ids_; }
  const std::vector<std::string>& notes() const override { return notes_; }
  int64_t bytes() const override;

 private:
  int64_t KeyRow() const { return int64_t{options_.shape.kv_heads} * options_.shape.dk; }
  int64_t ValueRow() const { return int64_t{options_.shape.kv_heads} * options_.shape.dv; }
  std::vector<float> Rotated(int layer, const float* k, int64_t rows) const;
  LayerRows Prepare(const LayerGradients& layer) const;
  void Rank(LayerRows& rows) const;
  void FitLayer(int layer);
  void NoteLayer(int layer);
  void MatchLayer(LayerState& state) const;
  void Write(const NuqWanted& wanted, CodecTables& tables) const;
  void WriteLimits(const std::string& prefix, const NormalizationRule& rule,
                   CodecTables& tables) const;
  void WriteDatatype(const std::string& centroids, const std::string& decode,
                     const NormalizationRule& rule, const NuqWanted& wanted,
                     CodecTables& tables) const;
  void WriteSlots(const std::string& prefix, const NormalizationRule& rule,
                  CodecTables& tables) const;

  NuqCalibratorOptions options_;
  NuqPlan plan_;
  bool rotated_ = false;  // some rule looks at keys after RoPE
  std::set<RankRule> ranks_;
  std::vector<LayerState> layers_;
  std::vector<std::string> ids_, notes_;
};

NuqCalibratorImpl::NuqCalibratorImpl(const NuqCalibratorOptions& options, NuqPlan plan)
    : options_(options), plan_(std::move(plan)), layers_(options.shape.layers) {
  for (const NuqWanted& wanted : plan_.wanted) ids_.push_back(wanted.id);
  for (LayerState& layer : layers_) {
    for (const auto& [rule, fraction] : plan_.tails) {
      const int64_t rows = options_.window - (rule.no_sinks ? 0 : kNuqSinks);
      layer.tails.try_emplace(rule, rule.side == KvSide::kKey ? KeyRow() : ValueRow(),
                              options_.windows * rows, fraction);
    }
    for (const FitRule& fit : plan_.histograms) {
      layer.sides.try_emplace(fit.rule, fit.rule, options_.shape);
    }
  }
  for (const auto& [rule, side] : layers_[0].sides) {
    rotated_ |= rule.post_rope;
    if (rule.range != RangeOf::kChannel && side.per_side() > 0) {
      ranks_.insert({rule.side, rule.post_rope, side.per_side()});
    }
  }
}

// As a cache of keys after RoPE gets them: rotated in fp32 at positions 0, 1, ..
std::vector<float> NuqCalibratorImpl::Rotated(int layer, const float* k, int64_t rows) const {
  const RopeTable& table = *options_.rope[layer];
  std::vector<float> rotated(k, k + rows * KeyRow());
  ParallelFor((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    std::vector<float> angles(table.planes() * 2);
    const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < end; ++row) {
      RopeAngles(table, row, angles.data());
      for (int head = 0; head < options_.shape.kv_heads; ++head) {
        RopeRotate(table, angles.data(), &rotated[row * KeyRow() + head * options_.shape.dk]);
      }
    }
  });
  return rotated;
}

// A rotation preserves the gradient's length, so that of the rotated key is the gradient rotated; RoPE's attention scale
// is one factor of all of them, which moves nothing.
LayerRows NuqCalibratorImpl::Prepare(const LayerGradients& layer) const {
  LayerRows rows;
  rows.rows = layer.rows;
  rows.k = RoundedToHalf(layer.k, layer.rows * KeyRow());
  rows.v = RoundedToHalf(layer.v, layer.rows * ValueRow());
  rows.dk = layer.dk;
  rows.dv = layer.dv;
  if (!rotated_) return rows;
  rows.k_rotated =
      RoundedToHalf(Rotated(layer.layer, layer.k, layer.rows).data(), layer.rows * KeyRow());
  if (layer.dk != nullptr) rows.dk_rotated = Rotated(layer.layer, layer.dk, layer.rows);
  return rows;
}

void NuqCalibratorImpl::ObserveForward(const LayerGradients& layer) {
  CheckFinite("key", layer.layer, layer.k, layer.rows, KeyRow());
  CheckFinite("value", layer.layer, layer.v, layer.rows, ValueRow());
  if (!error_.ok()) return;
  const LayerRows rows = Prepare(layer);
  for (auto& [rule, tails] : layers_[layer.layer].tails) {
    const int64_t sinks = rule.no_sinks ? 0 : kNuqSinks;
    const int64_t width = rule.side == KvSide::kKey ? KeyRow() : ValueRow();
    tails.Add(rows.Rows(rule.side, rule.post_rope) + sinks * width, layer.rows - sinks);
  }
}

absl::Status NuqCalibratorImpl::FinishForward() {
  KVRING_RETURN_IF_ERROR(error_);
  ParallelFor(options_.shape.layers, [&](int64_t i) {
    LayerState& layer = layers_[i];
    for (auto& [rule, side] : layer.sides) {
      if (rule.range != RangeOf::kChannel) continue;
      side.SetLimits(layer.tails.at(TailsOf(rule)).Quantiles(rule.fraction));
    }
    layer.tails.clear();
  });
  for (LayerState& layer : layers_) {
    for (const FitRule& fit : plan_.histograms) layer.sides.at(fit.rule).Want(fit.weight);
  }
  return absl::OkStatus();
}

void NuqCalibratorImpl::Rank(LayerRows& rows) const {
  for (const RankRule& rule : ranks_) {
    const int64_t width = rule.side == KvSide::kKey ? KeyRow() : ValueRow();
    const float* const x = rows.Rows(rule.side, rule.post_rope);
    std::vector<int32_t>& extremes = rows.extremes[rule];
    extremes.resize(rows.rows * 2 * rule.per_side);
    ParallelFor((rows.rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
      const int64_t end = std::min(rows.rows, (task + 1) * kRowsPerTask);
      for (int64_t row = task * kRowsPerTask; row < end; ++row) {
        SelectExtremes({x + row * width, static_cast<size_t>(width)},
                       static_cast<int>(rule.per_side), &extremes[row * 2 * rule.per_side]);
      }
    });
  }
}

// Every histogram is one thread's, and takes its elements in the text's order.
void NuqCalibratorImpl::ObserveBackward(const LayerGradients& layer) {
  CheckFinite("gradient of a key", layer.layer, layer.dk, layer.rows, KeyRow());
  CheckFinite("gradient of a value", layer.layer, layer.dv, layer.rows, ValueRow());
  if (!error_.ok()) return;
  LayerRows rows = Prepare(layer);
  Rank(rows);
  std::vector<NormalizedSide*> sides;
  for (auto& [rule, side] : layers_[layer.layer].sides) sides.push_back(&side);
  ParallelFor(static_cast<int64_t>(sides.size()), [&](int64_t i) {
    const NormalizationRule& rule = sides[i]->rule();
    SideRows view;
    view.x = rows.Rows(rule.side, rule.post_rope);
    view.g = rows.Gradients(rule.side, rule.post_rope);
    view.rows = rows.rows;
    if (rule.range != RangeOf::kChannel && sides[i]->per_side() > 0) {
      view.extremes = rows.extremes.at({rule.side, rule.post_rope, sides[i]->per_side()});
    }
    sides[i]->Add(view);
  });
}

// The layer's datatypes; its histograms go.
void NuqCalibratorImpl::FitLayer(int layer) {
  LayerState& state = layers_[layer];
  NoteLayer(layer);
  std::vector<FitRule> fits;
  for (const auto& [fit, clusters] : plan_.fits) fits.push_back(fit);
  std::vector<std::vector<std::vector<float>>> results(fits.size());
  ParallelFor(static_cast<int64_t>(fits.size()), [&](int64_t i) {
    const std::set<int>& wanted = plan_.fits.at(fits[i]);
    const std::vector<int> clusters(wanted.begin(), wanted.end());
    results[i] = WeightedKMeans(state.sides.at(fits[i].rule).Histogram(fits[i].weight), clusters);
  });
  for (size_t i = 0; i < fits.size(); ++i) {
    size_t at = 0;
    for (const int clusters : plan_.fits.at(fits[i])) {
      state.centroids[fits[i]][clusters] = std::move(results[i][at++]);
    }
  }
  MatchLayer(state);
  for (auto& [rule, side] : state.sides) side.DropHistograms();
}

void NuqCalibratorImpl::NoteLayer(int layer) {
  bool keys_silent = false, values_silent = false;
  for (const auto& [fit, clusters] : plan_.fits) {
    if (fit.weight == ElementWeight::kUnit || !layers_[layer].sides.at(fit.rule).fell_back()) {
      continue;
    }
    (fit.rule.side == KvSide::kKey ? keys_silent : values_silent) = true;
  }
  const auto note = [&](const char* side) {
    notes_.push_back(
        absl::StrCat("layer ", layer, ": no gradient reaches its ", side, "; equal weights used"));
  };
  if (keys_silent) note("keys");
  if (values_silent) note("values");
}

void NuqCalibratorImpl::MatchLayer(LayerState& state) const {
  for (const NuqWanted& wanted : plan_.wanted) {
    if (!wanted.options.qnorm) continue;
    for (const NormalizationRule& rule : {wanted.keys, wanted.values, wanted.token_values}) {
      const FitRule fit{rule, wanted.weight};
      const std::vector<float>& centroids = state.centroids.at(fit).at(wanted.clusters());
      const WeightedHistogram& unit = state.sides.at(rule).Histogram(ElementWeight::kUnit);
      state.decoded[fit][wanted.clusters()] = DecodeTable(MatchMoments(unit, centroids), centroids);
    }
  }
}

absl::Status NuqCalibratorImpl::Finish(CodecTables& tables,
                                       const std::function<void(double share)>& progress) {
  KVRING_RETURN_IF_ERROR(error_);
  for (int layer = 0; layer < options_.shape.layers; ++layer) {
    FitLayer(layer);
    if (progress) progress((layer + 1.0) / options_.shape.layers);
  }
  for (const NuqWanted& wanted : plan_.wanted) Write(wanted, tables);
  return absl::OkStatus();
}

void NuqCalibratorImpl::Write(const NuqWanted& wanted, CodecTables& tables) const {
  const std::string prefix = wanted.id + "/";
  tables.tensors[prefix + "block_tokens"] = {{1},
                                             {static_cast<float>(options_.shape.block_tokens)}};
  if (wanted.keys.range == RangeOf::kChannel) WriteLimits(prefix + "k", wanted.keys, tables);
  if (wanted.values.range == RangeOf::kChannel) WriteLimits(prefix + "v", wanted.values, tables);
  WriteDatatype("k_cent", "k_decode", wanted.keys, wanted, tables);
  WriteDatatype("v_cent", "v_decode", wanted.values, wanted, tables);
  WriteDatatype("v_cent_token", "v_decode_token", wanted.token_values, wanted, tables);
  WriteSlots(prefix + "k", wanted.keys, tables);
  WriteSlots(prefix + "v", wanted.values, tables);
}

void NuqCalibratorImpl::WriteLimits(const std::string& prefix, const NormalizationRule& rule,
                                    CodecTables& tables) const {
  CodecTable lo, hi;
  for (const LayerState& layer : layers_) {
    const ChannelTails::Limits& limits = layer.sides.at(rule).limits();
    lo.values.insert(lo.values.end(), limits.lo.begin(), limits.lo.end());
    hi.values.insert(hi.values.end(), limits.hi.begin(), limits.hi.end());
  }
  const int64_t width = rule.side == KvSide::kKey ? KeyRow() : ValueRow();
  lo.shape = hi.shape = {options_.shape.layers, width};
  tables.tensors[prefix + "_lo"] = std::move(lo);
  tables.tensors[prefix + "_hi"] = std::move(hi);
}

void NuqCalibratorImpl::WriteDatatype(const std::string& centroids, const std::string& decode,
                                      const NormalizationRule& rule, const NuqWanted& wanted,
                                      CodecTables& tables) const {
  const FitRule fit{rule, wanted.weight};
  const auto write = [&](const std::string& name, const auto& of_layer) {
    CodecTable table;
    table.shape = {options_.shape.layers, wanted.clusters()};
    for (const LayerState& layer : layers_) {
      const std::vector<float>& row = of_layer(layer).at(fit).at(wanted.clusters());
      table.values.insert(table.values.end(), row.begin(), row.end());
    }
    tables.tensors[wanted.id + "/" + name] = std::move(table);
  };
  write(
      centroids, [](const LayerState& layer) -> const auto& { return layer.centroids; });
  if (!wanted.options.qnorm) return;
  write(
      decode, [](const LayerState& layer) -> const auto& { return layer.decoded; });
}

void NuqCalibratorImpl::WriteSlots(const std::string& prefix, const NormalizationRule& rule,
                                   CodecTables& tables) const {
  CodecTable slots, outliers;
  slots.shape = outliers.shape = {options_.shape.layers, options_.shape.kv_heads};
  for (const LayerState& layer : layers_) {
    for (const SlotCounts& head : layer.sides.at(rule).slots()) {
      slots.values.push_back(rule.fraction > 0 ? static_cast<float>(head.Slots()) : 0.0f);
      outliers.values.push_back(static_cast<float>(head.MeanOutliers()));
    }
  }
  tables.tensors[prefix + "_slots"] = std::move(slots);
  tables.tensors[prefix + "_outliers"] = std::move(outliers);
}

int64_t NuqCalibratorImpl::bytes() const {
  int64_t total = 0;
  for (const LayerState& layer : layers_) {
    for (const auto& [rule, tails] : layer.tails) total += tails.bytes();
    for (const auto& [rule, side] : layer.sides) total += side.bytes();
  }
  return total;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NuqCalibrator>> NuqCalibrator::Create(
    const NuqCalibratorOptions& options) {
  KVRING_ASSIGN_OR_RETURN(NuqPlan plan, MakeNuqPlan(options.codecs));
  const KvShape& shape = options.shape;
  if (shape.layers < 1 || static_cast<int>(options.rope.size()) != shape.layers) {
    return absl::InvalidArgumentError(absl::StrCat("calibration of ", shape.layers, " layers with ",
                                                   options.rope.size(), " frequency tables"));
  }
  if (options.windows < 1 || options.window < shape.block_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("calibration needs at least one window of a block (", shape.block_tokens,
                     " tokens); asked for ", options.windows, " of ", options.window));
  }
  return std::make_unique<NuqCalibratorImpl>(options, std::move(plan));
}

}  // namespace kvring
