// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/calibrate.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/codec/nuq_rules.h"
#include "kernels/codec/tc_model.h"
#include "runtime/backward/backward_pass.h"
#include "runtime/base/hash.h"
#include "runtime/calibrate/calibration_passes.h"
#include "runtime/calibrate/calibration_windows.h"
#include "runtime/calibrate/nuq_calibrator.h"
#include "runtime/calibrate/tc_calibrator.h"
#include "runtime/model/fingerprint.h"

namespace kvring {
namespace {

std::vector<const RopeTable*> RopeTables(const ModelConfig& config) {
  std::vector<const RopeTable*> tables;
  for (const RopeTable& table : config.rope) tables.push_back(&table);
  return tables;
}

int64_t ServedContext(const CalibrateOptions& options) {
  return options.served_context > 0 ? options.served_context : options.window;
}

absl::StatusOr<CalibrationWindows> WindowsOf(const CalibrateOptions& options, int64_t tokens) {
  const std::vector<int64_t> one = {tokens};
  const std::vector<int64_t>& texts = options.text_tokens.empty() ? one : options.text_tokens;
  return ChooseWindows(texts, options.window, options.windows, options.seed);
}

absl::Status CheckWindow(const CalibrateOptions& options) {
  const int64_t trained = options.config.trained_context;
  if (trained <= 0 || options.window <= trained) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--window ", options.window,
                                                 " is beyond the model's trained context of ",
                                                 trained, " tokens"));
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
absl::StatusOr<CodecCalibrators> MakeCalibrators(const CalibrateOptions& options,
                                                 const CalibrationWindows& windows) {
  NuqCalibratorOptions nuq;
  nuq.shape = options.config.kv_shape(options.block_tokens);
  nuq.rope = RopeTables(options.config);
  nuq.window = options.window;
  nuq.windows = static_cast<int64_t>(windows.begins.size());
  for (const std::string& codec : options.codecs) {
    if (!TcCalibrator::Makes(codec)) nuq.codecs.push_back(codec);
  }
  CodecCalibrators calibrators;
  if (!nuq.codecs.empty() || options.codecs.empty()) {
    KVRING_ASSIGN_OR_RETURN(std::unique_ptr<CodecCalibrator> made, NuqCalibrator::Create(nuq));
    calibrators.push_back(std::move(made));
  }
  if (nuq.codecs.size() < options.codecs.size()) {
    TcCalibratorOptions tc;
    tc.shape = nuq.shape;
    tc.rope = nuq.rope;
    tc.window = options.window;
    tc.served_context = ServedContext(options);
    tc.text_of_window = TextsOfWindows(options, windows);
    KVRING_ASSIGN_OR_RETURN(std::unique_ptr<CodecCalibrator> made, TcCalibrator::Create(tc));
    calibrators.push_back(std::move(made));
  }
  return calibrators;
}

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

int64_t BytesOf(const CodecCalibrators& calibrators) {
  int64_t total = 0;
  for (const auto& calibrator : calibrators) total += calibrator->bytes();
  return total;
}

double Lap(absl::Time& since) {
  const absl::Time now = absl::Now();
  return absl::ToDoubleSeconds(now - std::exchange(since, now));
}

void Gather(const CodecCalibrators& calibrators, std::vector<std::string>& codecs,
            std::vector<std::string>& notes) {
  for (const auto& calibrator : calibrators) {
    codecs.insert(codecs.end(), calibrator->table_ids().begin(), calibrator->table_ids().end());
    notes.insert(notes.end(), calibrator->notes().begin(), calibrator->notes().end());
  }
}

absl::StatusOr<std::unique_ptr<BackwardPass>> LoadPass(const CalibrateOptions& options) {
  WeightsOptions weights_options;
  weights_options.keep_for_backward = true;
  KVRING_ASSIGN_OR_RETURN(auto weights,
                          Weights::Load(options.file, options.config, weights_options));
  return BackwardPass::Create(std::move(weights));
}

// tc again, with the metric that the artifact's tables hold.
absl::StatusOr<std::unique_ptr<CodecCalibrator>> MakeUpdater(const CalibrateOptions& options,
                                                             const Calibration& from,
                                                             const CalibrationWindows& windows) {
  const KvShape shape = options.config.kv_shape(options.block_tokens);
  const std::string wrong = TcModel::Check(*from.tables, shape);
  if (!wrong.empty()) return absl::InvalidArgumentError(wrong);
  TcCalibratorOptions tc;
  tc.shape = shape;
  tc.rope = RopeTables(options.config);
  tc.window = options.window;
  tc.keep = std::make_shared<const TcModel>(from.tables, shape);
  tc.served_context =
      options.served_context > 0 ? options.served_context : tc.keep->served_context();
  tc.text_of_window.assign(windows.begins.size(), 0);  // nothing is left out to check on
  KVRING_ASSIGN_OR_RETURN(std::unique_ptr<TcCalibrator> made, TcCalibrator::Create(tc));
  return made;
}

}  // namespace

absl::Status CheckCalibrate(const CalibrateOptions& options, int64_t tokens) {
  KVRING_RETURN_IF_ERROR(CheckWindow(options));
  KVRING_ASSIGN_OR_RETURN(const CalibrationWindows windows, WindowsOf(options, tokens));
  return MakeCalibrators(options, windows).status();
}

absl::StatusOr<CalibrationResult> Calibrate(const CalibrateOptions& options,
                                            std::span<const int32_t> ids,
                                            const CalibrationProgress& progress) {
  const auto tokens = static_cast<int64_t>(ids.size());
  KVRING_RETURN_IF_ERROR(CheckCalibrate(options, tokens));
  KVRING_ASSIGN_OR_RETURN(const CalibrationWindows windows, WindowsOf(options, tokens));
  KVRING_ASSIGN_OR_RETURN(const CodecCalibrators calibrators, MakeCalibrators(options, windows));
  KVRING_ASSIGN_OR_RETURN(std::unique_ptr<BackwardPass> pass, LoadPass(options));
  CalibrationResult result;
  result.notes = windows.notes;
  result.begins = windows.begins;
  CalibrationInfo& info = result.calibration.info;
  KVRING_ASSIGN_OR_RETURN(info, MakeInfo(options, static_cast<int64_t>(windows.begins.size())));
  CalibrationPasses passes(ids, options.window, result.begins, options.config.layers,
                           /*gradients=*/true, progress);
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
  Gather(calibrators, result.calibration.info.codecs, result.notes);
  tables->hash = HashTables(*tables);
  result.calibration.tables = std::move(tables);
  return result;
}

absl::Status CheckUpdate(const CalibrateOptions& options, const Calibration& from, int64_t tokens) {
  KVRING_RETURN_IF_ERROR(CheckWindow(options));
  KVRING_ASSIGN_OR_RETURN(const CalibrationWindows windows, WindowsOf(options, tokens));
  return MakeUpdater(options, from, windows).status();
}

absl::StatusOr<CalibrationResult> UpdateCovariance(const CalibrateOptions& options,
                                                   const Calibration& from,
                                                   std::span<const int32_t> ids,
                                                   const CalibrationProgress& progress) {
  const auto tokens = static_cast<int64_t>(ids.size());
  KVRING_RETURN_IF_ERROR(CheckUpdate(options, from, tokens));
  KVRING_ASSIGN_OR_RETURN(const CalibrationWindows windows, WindowsOf(options, tokens));
  CodecCalibrators updater(1);
  KVRING_ASSIGN_OR_RETURN(updater[0], MakeUpdater(options, from, windows));
  KVRING_ASSIGN_OR_RETURN(std::unique_ptr<BackwardPass> pass, LoadPass(options));
  CalibrationResult result;
  result.notes = windows.notes;
  result.begins = windows.begins;
  CalibrationPasses passes(ids, options.window, result.begins, options.config.layers,
                           /*gradients=*/false, progress);
  absl::Time since = absl::Now();
  KVRING_RETURN_IF_ERROR(passes.Forward(*pass, updater));
  KVRING_RETURN_IF_ERROR(passes.Again(*pass, updater));
  result.forward_s = Lap(since);
  result.calibrator_bytes = BytesOf(updater);
  pass.reset();
  auto tables = std::make_shared<CodecTables>();
  KVRING_RETURN_IF_ERROR(passes.Fit(updater, *tables));
  result.fit_s = Lap(since);
  std::vector<std::string> ids_made;
  Gather(updater, ids_made, result.notes);
  tables->tensors.insert(from.tables->tensors.begin(), from.tables->tensors.end());  // the others
  tables->hash = HashTables(*tables);
  result.calibration.info = from.info;
  result.calibration.info.held_out.reset();  // of the tables that were
  if (options.served_context > 0) result.calibration.info.served_context = options.served_context;
  result.calibration.info.update = CalibrationUpdate{options.texts,
                                                     passes.TextHash(),
                                                     HashHex(from.tables->hash),
                                                     static_cast<int64_t>(windows.begins.size()),
                                                     options.window,
                                                     static_cast<int64_t>(options.seed)};
  result.calibration.tables = std::move(tables);
  return result;
}

}  // namespace kvring
