// SPDX-License-Identifier: Apache-2.0
// `kvring calibrate`: tables of calibrated codecs for one model, from a text.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "kernels/parallel.h"
#include "kvstore/calibration_file.h"
#include "kvstore/codec_spec.h"
#include "launch/calibration_lookup.h"
#include "launch/command.h"
#include "launch/job.h"
#include "launch/json_file.h"
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
    "nuq4,nuq4-0.1%,nuq4-0.5%,nuq4-1%,nuq3,nuq3-0.1%,nuq3-0.5%,nuq3-1%,"
    "nuq2,nuq2-0.1%,nuq2-0.5%,nuq2-1%";
// Steps of the bar: fine enough to move on a large model.
constexpr int64_t kSteps = 1000;

struct CalibrateFlags {
  std::string model, output, math = "f32", codecs = kDefaultCodecs;
  std::vector<std::string> texts;
  std::string window = "2048", served_context = "0";
  int64_t windows = 16, seed = 0;
  int block_tokens = 64;
};

struct Measured {
  double seconds = 0.0;
  int64_t file_bytes = 0, peak_rss_bytes = 0;
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
  for (const std::string& text : flags.texts) {
    options.texts.push_back(std::filesystem::path(text).filename().string());
  }
  return options;
}

Measured Measure(const std::string& path, absl::Time start) {
  Measured measured;
  measured.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  measured.file_bytes = error ? 0 : static_cast<int64_t>(size);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  measured.peak_rss_bytes = int64_t{usage.ru_maxrss} * 1024;
  return measured;
}

void Print(const CalibrationResult& result, const std::string& path, const Measured& measured) {
  const CalibrationInfo& info = result.calibration.info;
  for (const std::string& note : result.notes) std::printf("note: %s\n", note.c_str());
  std::printf("%d codecs from %d windows of %s tokens, %.4f nats a token, in %.0f s, %s at most\n",
              static_cast<int>(info.codecs.size()), static_cast<int>(info.windows),
              Grouped(info.window).c_str(), info.loss, measured.seconds,
              HumanBytes(measured.peak_rss_bytes).c_str());
  std::printf("%s (%s): %s\n", path.c_str(), HumanBytes(measured.file_bytes).c_str(),
              absl::StrJoin(info.codecs, ", ").c_str());
}

absl::Status WriteJson(const CalibrationResult& result, const std::string& path,
                       const Measured& measured, const std::string& to) {
  const CalibrationInfo& info = result.calibration.info;
  const nlohmann::ordered_json json = {
      {"file", path},
      {"model_hash", info.model_hash},
      {"text_hash", info.text_hash},
      {"tables_hash", absl::StrFormat("%016x", result.calibration.tables->hash)},
      {"codecs", info.codecs},
      {"windows", info.windows},
      {"window", info.window},
      {"seed", info.seed},
      {"loss", info.loss},
      {"math", "f32"},
      {"seconds", measured.seconds},
      {"forward_s", result.forward_s},
      {"backward_s", result.backward_s},
      {"fit_s", result.fit_s},
      {"bytes", measured.file_bytes},
      {"calibrator_bytes", result.calibrator_bytes},
      {"peak_rss_bytes", measured.peak_rss_bytes},
      {"notes", result.notes}};
  return WriteTextFile(to, json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

absl::Status RunCalibrate(const CalibrateFlags& flags, const GlobalOptions& global) {
  EndOnInterrupt();
  const absl::Time start = absl::Now();
  KVRING_ASSIGN_OR_RETURN(const OpenModel model, OpenModelFile(flags.model));
  KVRING_ASSIGN_OR_RETURN(CalibrateOptions options, OptionsOf(flags, model));
  std::string path = flags.output;
  if (path.empty()) {
    KVRING_ASSIGN_OR_RETURN(path, CachedCalibrationPath(model));
  }
  KVRING_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                          IdsOf(model, flags.texts, options.text_tokens));
  KVRING_RETURN_IF_ERROR(CheckCalibrate(options, static_cast<int64_t>(ids.size())));
  KVRING_RETURN_IF_ERROR(CheckWritable(path, flags.output.empty()));
  SetThreads(ThreadsPerRank(global.threads, 1));
  Progress progress("calibrate ", "steps", kSteps, global.quiet);
  KVRING_ASSIGN_OR_RETURN(const CalibrationResult result,
                          Calibrate(options, ids, [&](double share) {
                            progress.Update(static_cast<int64_t>(share * kSteps));
                          }));
  progress.Finish();
  KVRING_RETURN_IF_ERROR(WriteCalibration(result.calibration, path));
  const Measured measured = Measure(path, start);
  if (global.json != "-" && !global.quiet) Print(result, path, measured);
  return global.json.empty() ? absl::OkStatus() : WriteJson(result, path, measured, global.json);
}

}  // namespace

CommandAction AddCalibrateCommand(CLI::App& app, const GlobalOptions& global) {
  auto flags = std::make_shared<CalibrateFlags>();
  app.add_option("-m,--model", flags->model, "model file (GGUF)")->required();
  app.add_option("-f,--file,--text", flags->texts, "calibration text; may be given several times")
      ->required();
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
  app.add_option("--served-context", flags->served_context,
                 "context that the tables will serve, for codecs that depend on it (0: a window)")
      ->capture_default_str();
  app.add_option("--math", flags->math, "products of linear layers: f32 alone")
      ->capture_default_str();
  app.add_option("--block-tokens", flags->block_tokens,
                 "tokens of a block that slots are meant for")
      ->capture_default_str()
      ->check(CLI::Range(16, 65536));
  return [flags, &global] { return RunCalibrate(*flags, global); };
}

}  // namespace kvring
