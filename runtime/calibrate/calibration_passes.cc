// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/calibration_passes.h"

#include <algorithm>

#include "runtime/base/hash.h"

namespace kvring {
namespace {

// Cost in windows read forward. Measured on a model of 135M parameters: a second pass goes forward, forms each layer anew and
// goes back through it; fitting a dozen codecs costs a few windows. Only the bar depends on these.
constexpr double kBackwardCost = 3.3, kFitCost = 4.0;

}  // namespace

CalibrationPasses::CalibrationPasses(std::span<const int32_t> ids, int64_t window,
                                     const std::vector<int64_t>& begins, int layers, bool gradients,
                                     const std::function<void(double share)>& progress)
    : ids_(ids), window_(window), begins_(begins), layers_(layers), progress_(progress) {
  const double second = gradients ? kBackwardCost : 1.0;
  total_ = static_cast<double>(begins.size()) * (1.0 + second) + kFitCost;
}

absl::Status CalibrationPasses::Forward(BackwardPass& pass, const CodecCalibrators& calibrators) {
  for (const int64_t begin : begins_) {
    KVRING_RETURN_IF_ERROR(pass.Forward(Window(begin), [&](const LayerGradients& layer) {
      for (const auto& calibrator : calibrators) calibrator->ObserveForward(layer);
      TellLayer(layer.layer + 1, 1.0);
    }));
    Finished(1.0);
  }
  for (const auto& calibrator : calibrators) KVRING_RETURN_IF_ERROR(calibrator->FinishForward());
  return absl::OkStatus();
}

absl::StatusOr<double> CalibrationPasses::Backward(BackwardPass& pass,
                                                   const CodecCalibrators& calibrators) {
  double sum = 0;
  for (const int64_t begin : begins_) {
    const auto sink = [&](const LayerGradients& layer) {
      for (const auto& calibrator : calibrators) calibrator->ObserveBackward(layer);
      TellLayer(layers_ - layer.layer, kBackwardCost);
    };
    KVRING_ASSIGN_OR_RETURN(const double loss, pass.Run(Window(begin), sink));
    sum += loss;
    Finished(kBackwardCost);
  }
  return sum / static_cast<double>(begins_.size());
}

absl::Status CalibrationPasses::Again(BackwardPass& pass, const CodecCalibrators& calibrators) {
  for (const int64_t begin : begins_) {
    KVRING_RETURN_IF_ERROR(pass.Forward(Window(begin), [&](const LayerGradients& layer) {
      for (const auto& calibrator : calibrators) calibrator->ObserveBackward(layer);
      TellLayer(layer.layer + 1, 1.0);
    }));
    Finished(1.0);
  }
  return absl::OkStatus();
}

absl::Status CalibrationPasses::Fit(const CodecCalibrators& calibrators, CodecTables& tables) {
  const double each = kFitCost / static_cast<double>(calibrators.size());
  for (const auto& calibrator : calibrators) {
    KVRING_RETURN_IF_ERROR(calibrator->Finish(tables, [&](double share) { Tell(share * each); }));
    Finished(each);
  }
  return absl::OkStatus();
}

std::string CalibrationPasses::TextHash() const {
  std::vector<uint8_t> bytes;
  for (const int64_t begin : begins_) {
    for (const int32_t id : Window(begin)) {
      for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<uint8_t>(id >> (8 * i)));
    }
  }
  return HashHex(Hash128(bytes.data(), static_cast<int64_t>(bytes.size())));
}

std::span<const int32_t> CalibrationPasses::Window(int64_t begin) const {
  return ids_.subspan(static_cast<size_t>(begin), static_cast<size_t>(window_));
}

void CalibrationPasses::Tell(double more) const {
  if (progress_) progress_(std::min(1.0, (done_ + more) / total_));
}

void CalibrationPasses::Finished(double cost) {
  done_ += cost;
  Tell(0.0);
}

}  // namespace kvring
