// SPDX-License-Identifier: Apache-2.0
// `kvring calibrate`: tables of calibrated codecs for one model, from a text.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "absl/time/clock.h"
#include "kernels/codec/tc_model.h"
#include "kernels/parallel.h"
#include "kvstore/calibration_file.h"
#include "kvstore/codec_spec.h"
#include "launch/calibrate_report.h"
#include "launch/calibration_lookup.h"
#include "launch/command.h"
#include "launch/held_out.h"
#include "launch/job.h"
#include "launch/lengths.h"
#include "launch/model_options.h"
#include "launch/progress.h"
#include "launch/prompt.h"
#include "runtime/calibrate/calibrate.h"
#include "runtime/model/vocab_reader.h"
#include "runtime/text/tokenizer.h"

namespace kvring {
namespace {

constexpr const char* kDefaultCodecs =
    "tc,nuq4,nuq4-0.1%,nuq4-0.5%,nuq4-1%,nuq3,nuq3-0.1%,nuq3-0.5%,nuq3-1%,"
    "nuq2,nuq2-0.1%,nuq2-0.5%,nuq2-1%";
// Any codec whose tables are those of tc.
constexpr const char* kAnyTc = "tc2";
// Steps of the bar: fine enough to move on a large model.
constexpr int64_t kSteps = 1000;

struct CalibrateFlags {
  std::string model, output, math = "f32", codecs = kDefaultCodecs;
  std::vector<std::string> texts, updates;
  std::string calibration;  // of an update
  bool kv_given = false, no_held_out = false;
  std::string window = "2048", served_context = "0";
  int64_t windows = 16, seed = 0;
  int block_tokens = 64;
};

// Texts one behind the other, without begin tokens between; tokens of each in text_tokens.
absl::StatusOr<std::vector<int32_t>> IdsOf(const OpenModel& model,
                                           const std::vector<std::string>& paths,
                                           std::vector<int64_t>& text_tokens) {
  KVRING_ASSIGN_OR_RETURN(const VocabData vocab, ReadVocab(*model.file));
  KVRING_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Create(vocab));
  std::vector<int32_t> ids;
  for (const std::string& path : paths) {
    KVRING_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
    KVRING_ASSIGN_OR_RETURN(const EncodeResult encoded,
                            tokenizer->Encode(text, {BeginToken::kNever, false}));
    ids.insert(ids.end(), encoded.ids.begin(), encoded.ids.end());
    text_tokens.push_back(static_cast<int64_t>(encoded.ids.size()));
  }
  return ids;
}

// Before minutes of work: a file beside the target can be made, as it will be when the tables are there.
absl::Status CheckWritable(const std::string& path, bool make_folder) {
  const auto refused = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("cannot write ", path, ": ", why));
  };
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (make_folder) std::filesystem::create_directories(folder, error);
  if (error) return refused(error.message());
  if (std::filesystem::is_directory(path, error)) return refused("it is a folder");
  const std::string probe = absl::StrCat(path, ".", getpid(), ".probe");
  const int file = open(probe.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0) return refused(std::strerror(errno));
  close(file);
  unlink(probe.c_str());
  return absl::OkStatus();
}

absl::StatusOr<CalibrateOptions> OptionsOf(const CalibrateFlags& flags, const OpenModel& model) {
  if (flags.math != "f32") {
    return absl::InvalidArgumentError(
        absl::StrCat("calibrate needs exact gradients: --math f32, not ", flags.math));
  }
  CalibrateOptions options;
  options.file = model.file;
  options.config = model.config;
  options.codecs = SplitCodecList(flags.codecs);
  KVRING_ASSIGN_OR_RETURN(options.window, ParseLength(flags.window));
  KVRING_ASSIGN_OR_RETURN(options.served_context, ParseLength(flags.served_context));
  options.windows = flags.windows;
  options.seed = static_cast<uint64_t>(flags.seed);
  options.block_tokens = flags.block_tokens;
  for (const std::string& text : flags.updates.empty() ? flags.texts : flags.updates) {
    options.texts.push_back(std::filesystem::path(text).filename().string());
  }
  return options;
}

// The artifact whose tc tables are redone: of --calibration, or the one that other commands would take.
absl::StatusOr<Calibration> UpdatedArtifact(const CalibrateFlags& flags, const OpenModel& model) {
  std::vector<std::string> files;
  if (!flags.calibration.empty()) files.push_back(flags.calibration);
  KVRING_ASSIGN_OR_RETURN(const CalibrationChoice choice,
                          FindCalibration(files, {kAnyTc}, flags.model, model, flags.block_tokens));
  return ReadCalibration(choice.used.front().file);
}

absl::Status CheckForm(const CalibrateFlags& flags) {
  if (flags.updates.empty()) {
    if (flags.texts.empty()) {
      return absl::InvalidArgumentError(
          "calibrate needs a text: -f TEXT, or --update-covariance TEXT for tables that exist");
    }
    if (!flags.calibration.empty())
      return absl::InvalidArgumentError("--calibration names what --update-covariance updates");
    return absl::OkStatus();
  }
  if (!flags.texts.empty()) {
    return absl::InvalidArgumentError(
        "--update-covariance takes the texts itself, one each time: leave out -f");
  }
  if (flags.kv_given) {
    return absl::InvalidArgumentError(
        "--update-covariance redoes tc and keeps the artifact's other codecs: leave out --kv");
  }
  return absl::OkStatus();
}

// Bar and time of the estimate; its points go into the result.
void AddHeldOut(const OpenModel& model, const CalibrateOptions& options,
                const std::vector<int32_t>& ids, bool quiet, CalibrationResult& result,
                double& seconds) {
  const absl::Time start = absl::Now();
  Progress progress("held-out ", "windows",
                    kHeldOutWindows * static_cast<int64_t>(HeldOutRates().size()), quiet);
  const ReadText text{ids, options.text_tokens, result.begins, options.window};
  absl::StatusOr<HeldOutResult> measured =
      MeasureHeldOut(model, result.calibration.tables, options.block_tokens, Threads(), text,
                     [&](int64_t done, int64_t) { progress.Update(done); });
  progress.Finish();
  seconds = absl::ToDoubleSeconds(absl::Now() - start);
  // The tables are good without: blocks that the runtime does not read (they must divide 2048) are no reason to lose them.
  if (!measured.ok()) {
    result.notes.push_back(
        absl::StrCat("tc: no held-out estimate: ", std::string(measured.status().message())));
    return;
  }
  if (!measured->note.empty()) result.notes.push_back(measured->note);
  result.calibration.info.held_out = std::move(measured->held_out);
}

absl::Status RunCalibrate(const CalibrateFlags& flags, const GlobalOptions& global) {
  EndOnInterrupt();
  const absl::Time start = absl::Now();
  KVRING_RETURN_IF_ERROR(CheckForm(flags));
  KVRING_ASSIGN_OR_RETURN(const OpenModel model, OpenModelFile(flags.model));
  KVRING_ASSIGN_OR_RETURN(CalibrateOptions options, OptionsOf(flags, model));
  std::string path = flags.output;
  if (path.empty()) {
    KVRING_ASSIGN_OR_RETURN(path, CachedCalibrationPath(model));
  }
  const bool update = !flags.updates.empty();
  Calibration from;
  if (update) {
    KVRING_ASSIGN_OR_RETURN(from, UpdatedArtifact(flags, model));
  }
  KVRING_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                          IdsOf(model, update ? flags.updates : flags.texts, options.text_tokens));
  const auto tokens = static_cast<int64_t>(ids.size());
  KVRING_RETURN_IF_ERROR(update ? CheckUpdate(options, from, tokens)
                                : CheckCalibrate(options, tokens));
  KVRING_RETURN_IF_ERROR(CheckWritable(path, flags.output.empty()));
  SetThreads(ThreadsPerRank(global.threads, 1));
  Progress progress(update ? "update " : "calibrate ", "steps", kSteps, global.quiet);
  const auto tell = [&](double share) { progress.Update(static_cast<int64_t>(share * kSteps)); };
  KVRING_ASSIGN_OR_RETURN(CalibrationResult result, update
                                                        ? UpdateCovariance(options, from, ids, tell)
                                                        : Calibrate(options, ids, tell));
  progress.Finish();
  KVRING_RETURN_IF_ERROR(WriteCalibration(result.calibration, path));
  double held_out_s = 0.0;
  const std::vector<std::string>& made = result.calibration.info.codecs;
  if (!flags.no_held_out && std::find(made.begin(), made.end(), kTcTableId) != made.end()) {
    // An interrupt from here on leaves the tables, without the estimate.
    AddHeldOut(model, options, ids, global.quiet, result, held_out_s);
    KVRING_RETURN_IF_ERROR(WriteCalibration(result.calibration, path));
  }
  const CalibrateReport report = MeasureCalibrate(path, start, held_out_s);
  if (global.json != "-" && !global.quiet) PrintCalibrateReport(result, report);
  return global.json.empty() ? absl::OkStatus() : WriteCalibrateJson(result, report, global.json);
}

}  // namespace

CommandAction AddCalibrateCommand(CLI::App& app, const GlobalOptions& global) {
  auto flags = std::make_shared<CalibrateFlags>();
  app.add_option("-m,--model", flags->model, "model file (GGUF)")->required();
  app.add_option("-f,--file,--text", flags->texts, "calibration text; may be given several times");
  app.add_option("--update-covariance", flags->updates,
                 "redo tc's means, covariances and bases from this text in tables that exist, "
                 "forward only: gradients and other codecs stay; may be given several times")
      ->allow_extra_args(false);
  app.add_option("--calibration", flags->calibration,
                 "tables to update (default: the user's own for this model, else what comes with "
                 "kvring)");
  app.add_flag("--no-held-out", flags->no_held_out,
               "do not measure what tc costs on windows that were not read");
  CLI::Option* const kv =
      app.add_option("--kv", flags->codecs,
                     "codecs, a list; tc serves every tc codec; nuq options that change tables are "
                     "post-rope, token-keys, "
                     "channel-values, cap, qnorm, fisher, unweighted, no-sinks")
          ->capture_default_str();
  app.add_option(
      "-o,--output", flags->output,
      "artifact to write (default: the user's cache folder, where other commands find it)");
  app.add_option("--window", flags->window, "tokens of a window")->capture_default_str();
  app.add_option("--windows", flags->windows, "windows")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--seed", flags->seed, "of the windows' places in the text")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option(
         "--served-context", flags->served_context,
         "context that the tables will serve, for codecs that depend on it (0: a window; of "
         "an update, as the tables do)")
      ->capture_default_str();
  app.add_option("--math", flags->math, "products of linear layers: f32 alone")
      ->capture_default_str();
  app.add_option("--block-tokens", flags->block_tokens,
                 "tokens of a block that slots are meant for")
      ->capture_default_str()
      ->check(CLI::Range(16, 65536));
  return [flags, kv, &global] {
    flags->kv_given = kv->count() > 0;
    return RunCalibrate(*flags, global);
  };
}

}  // namespace kvring
