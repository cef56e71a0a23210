// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/calibrate.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/codec/nuq_rules.h"
#include "runtime/backward/backward_pass.h"
#include "runtime/base/hash.h"
#include "runtime/calibrate/calibration_windows.h"
#include "runtime/calibrate/nuq_calibrator.h"
#include "runtime/calibrate/tc_calibrator.h"
#include "runtime/model/fingerprint.h"

namespace kvring {
namespace {

using Calibrators = std::vector<std::unique_ptr<CodecCalibrator>>;

std::vector<const RopeTable*> RopeTables(const ModelConfig& config) {
  std::vector<const RopeTable*> tables;
  for (const RopeTable& table : config.rope) tables.push_back(&table);
  return tables;
}

int64_t ServedContext(const CalibrateOptions& options) {
  return options.served_context > 0 ? options.served_context : options.window;
}

// Of each window, the text that its middle lies in.
std::vector<int> TextsOfWindows(const CalibrateOptions& options,
                                const CalibrationWindows& windows) {
  std::vector<int> texts;
  for (const int64_t begin : windows.begins) {
    int64_t end = 0;
    int text = -1;
    do {
      ++text;
      end += text < static_cast<int>(options.text_tokens.size()) ? options.text_tokens[text] : 0;
    } while (text + 1 < static_cast<int>(options.text_tokens.size()) &&
             begin + options.window / 2 >= end);
    texts.push_back(std::max(text, 0));
  }
  return texts;
}

// One calibrator for each family that the list names.
absl::StatusOr<Calibrators> MakeCalibrators(const CalibrateOptions& options,
                                            const CalibrationWindows& windows) {
  NuqCalibratorOptions nuq;
  nuq.shape = options.config.kv_shape(options.block_tokens);
  nuq.rope = RopeTables(options.config);
  nuq.window = options.window;
  nuq.windows = static_cast<int64_t>(windows.begins.size());
  for (const std::string& codec : options.codecs) {
    if (!TcCalibrator::Makes(codec)) nuq.codecs.push_back(codec);
  }
  Calibrators calibrators;
  if (!nuq.codecs.empty() || options.codecs.empty()) {
    KVRING_ASSIGN_OR_RETURN(std::unique_ptr<CodecCalibrator> made, NuqCalibrator::Create(nuq));
    calibrators.push_back(std::move(made));
  }
  if (nuq.codecs.size() < options.codecs.size()) {
    KVRING_ASSIGN_OR_RETURN(
        std::unique_ptr<CodecCalibrator> made,
        TcCalibrator::Create({nuq.shape, nuq.rope, options.window, ServedContext(options),
                              TextsOfWindows(options, windows)}));
    calibrators.push_back(std::move(made));
  }
  return calibrators;
}

// Progress by cost, in windows read forward. Measured on a model of 135M parameters: a second pass goes forward, forms each
// layer anew and goes back through it; fitting a dozen codecs costs a few windows. Only the bar depends on these.
constexpr double kBackwardCost = 3.3, kFitCost = 4.0;

class Meter {
 public:
  Meter(const CalibrationProgress& progress, int layers, int64_t windows)
      : progress_(progress), layers_(layers) {
    total_ = static_cast<double>(windows) * (1.0 + kBackwardCost) + kFitCost;
  }
  // `done` layers of a window whose whole costs `cost`.
  void Layer(int done, double cost) const { Tell(cost * done / layers_); }
  void Share(double share, double cost) const { Tell(cost * share); }
  void Finished(double cost) {
    done_ += cost;
    Tell(0.0);
  }

 private:
  void Tell(double more) const {
    if (progress_) progress_(std::min(1.0, (done_ + more) / total_));
  }
  const CalibrationProgress& progress_;
  int layers_;
  double total_ = 1.0, done_ = 0.0;
};

// The two passes and the end, over windows of ids.
class Passes {
 public:
  Passes(const CalibrateOptions& options, std::span<const int32_t> ids,
         const CalibrationWindows& windows, const CalibrationProgress& progress)
      : options_(options),
        ids_(ids),
        windows_(windows),
        meter_(progress, options.config.layers, static_cast<int64_t>(windows.begins.size())) {}

  absl::Status Forward(BackwardPass& pass, const Calibrators& calibrators) {
    for (const int64_t begin : windows_.begins) {
      KVRING_RETURN_IF_ERROR(pass.Forward(Window(begin), [&](const LayerGradients& layer) {
        for (const auto& calibrator : calibrators) calibrator->ObserveForward(layer);
        meter_.Layer(layer.layer + 1, 1.0);
      }));
      meter_.Finished(1.0);
    }
    for (const auto& calibrator : calibrators) KVRING_RETURN_IF_ERROR(calibrator->FinishForward());
    return absl::OkStatus();
  }

  // Mean loss of the windows, nats.
  absl::StatusOr<double> Backward(BackwardPass& pass, const Calibrators& calibrators) {
    double sum = 0;
    for (const int64_t begin : windows_.begins) {
      const auto sink = [&](const LayerGradients& layer) {
        for (const auto& calibrator : calibrators) calibrator->ObserveBackward(layer);
        meter_.Layer(options_.config.layers - layer.layer, kBackwardCost);
      };
      KVRING_ASSIGN_OR_RETURN(const double loss, pass.Run(Window(begin), sink));
      sum += loss;
      meter_.Finished(kBackwardCost);
    }
    return sum / static_cast<double>(windows_.begins.size());
  }

  absl::Status Fit(const Calibrators& calibrators, CodecTables& tables) {
    const double each = kFitCost / static_cast<double>(calibrators.size());
    for (const auto& calibrator : calibrators) {
      KVRING_RETURN_IF_ERROR(
          calibrator->Finish(tables, [&](double share) { meter_.Share(share, each); }));
      meter_.Finished(each);
    }
    return absl::OkStatus();
  }

  std::string TextHash() const {
    std::vector<uint8_t> bytes;
    for (const int64_t begin : windows_.begins) {
      for (const int32_t id : Window(begin)) {
        for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<uint8_t>(id >> (8 * i)));
      }
    }
    return HashHex(Hash128(bytes.data(), static_cast<int64_t>(bytes.size())));
  }

 private:
  std::span<const int32_t> Window(int64_t begin) const {
    return ids_.subspan(static_cast<size_t>(begin), static_cast<size_t>(options_.window));
  }
  const CalibrateOptions& options_;
  std::span<const int32_t> ids_;
  const CalibrationWindows& windows_;
  Meter meter_;
};

absl::StatusOr<CalibrationInfo> MakeInfo(const CalibrateOptions& options, int64_t windows) {
  KVRING_ASSIGN_OR_RETURN(const Hash128Value model, ModelFingerprint(*options.file));
  CalibrationInfo info;
  info.model_name = options.config.name;
  info.model_hash = HashHex(model);
  info.texts = options.texts;
  info.windows = windows;
  info.window = options.window;
  info.seed = static_cast<int64_t>(options.seed);
  info.sinks = kNuqSinks;
  info.served_context = ServedContext(options);
  info.shape = options.config.kv_shape(options.block_tokens);
  info.rope = DescribeRope(RopeTables(options.config));
  return info;
}

int64_t BytesOf(const Calibrators& calibrators) {
  int64_t total = 0;
  for (const auto& calibrator : calibrators) total += calibrator->bytes();
  return total;
}

double Lap(absl::Time& since) {
  const absl::Time now = absl::Now();
  return absl::ToDoubleSeconds(now - std::exchange(since, now));
}

void Gather(const Calibrators& calibrators, CalibrationResult& result) {
  std::vector<std::string>& codecs = result.calibration.info.codecs;
  for (const auto& calibrator : calibrators) {
    codecs.insert(codecs.end(), calibrator->table_ids().begin(), calibrator->table_ids().end());
    result.notes.insert(result.notes.end(), calibrator->notes().begin(), calibrator->notes().end());
  }
}

}  // namespace

absl::Status CheckCalibrate(const CalibrateOptions& options, int64_t tokens) {
  const int64_t trained = options.config.trained_context;
  if (trained > 0 && options.window > trained) {
    return absl::InvalidArgumentError(absl::StrCat("--window ", options.window,
                                                   " is beyond the model's trained context of ",
                                                   trained, " tokens"));
  }
  KVRING_ASSIGN_OR_RETURN(const CalibrationWindows windows,
                          ChooseWindows(tokens, options.window, options.windows, options.seed));
  return MakeCalibrators(options, windows).status();
}

absl::StatusOr<CalibrationResult> Calibrate(const CalibrateOptions& options,
                                            std::span<const int32_t> ids,
                                            const CalibrationProgress& progress) {
  const auto tokens = static_cast<int64_t>(ids.size());
  KVRING_RETURN_IF_ERROR(CheckCalibrate(options, tokens));
  KVRING_ASSIGN_OR_RETURN(const CalibrationWindows windows,
                          ChooseWindows(tokens, options.window, options.windows, options.seed));
  const auto count = static_cast<int64_t>(windows.begins.size());
  KVRING_ASSIGN_OR_RETURN(const Calibrators calibrators, MakeCalibrators(options, windows));
  WeightsOptions weights_options;
  weights_options.keep_for_backward = true;
  KVRING_ASSIGN_OR_RETURN(auto weights,
                          Weights::Load(options.file, options.config, weights_options));
  KVRING_ASSIGN_OR_RETURN(std::unique_ptr<BackwardPass> pass,
                          BackwardPass::Create(std::move(weights)));
  CalibrationResult result;
  if (!windows.note.empty()) result.notes.push_back(windows.note);
  CalibrationInfo& info = result.calibration.info;
  KVRING_ASSIGN_OR_RETURN(info, MakeInfo(options, count));
  Passes passes(options, ids, windows, progress);
  info.text_hash = passes.TextHash();
  absl::Time since = absl::Now();
  KVRING_RETURN_IF_ERROR(passes.Forward(*pass, calibrators));
  result.forward_s = Lap(since);
  KVRING_ASSIGN_OR_RETURN(info.loss, passes.Backward(*pass, calibrators));
  result.backward_s = Lap(since);
  result.calibrator_bytes = BytesOf(calibrators);
  pass.reset();  // fitting needs its own memory
  auto tables = std::make_shared<CodecTables>();
  KVRING_RETURN_IF_ERROR(passes.Fit(calibrators, *tables));
  result.fit_s = Lap(since);
  Gather(calibrators, result);
  tables->hash = HashTables(*tables);
  result.calibration.tables = std::move(tables);
  return result;
}

}  // namespace kvring
