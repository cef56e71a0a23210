// SPDX-License-Identifier: Apache-2.0
// `kvring eval`: quality against bytes, as a table and as JSON.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "kvstore/codec_spec.h"
#include "launch/command.h"
#include "launch/job.h"
#include "launch/json_file.h"
#include "launch/lengths.h"
#include "launch/model_options.h"
#include "launch/progress.h"
#include "launch/prompt.h"
#include "runtime/eval/evaluator.h"
#include "runtime/model/vocab_reader.h"
#include "runtime/text/tokenizer.h"

namespace kvring {
namespace {

struct EvalFlags {
  ModelFlags model;
  std::string text;
  std::string codecs = "f16,rot4";
  std::string window = "2048", start = "0", chunk;
  int64_t windows = 16;
  int ranks = 1;
};

absl::StatusOr<std::vector<int32_t>> TextIds(const OpenModel& model, const std::string& path) {
  KVRING_ASSIGN_OR_RETURN(const VocabData vocab, ReadVocab(*model.file));
  KVRING_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Create(vocab));
  KVRING_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  KVRING_ASSIGN_OR_RETURN(EncodeResult encoded,
                          tokenizer->Encode(text, {BeginToken::kNever, false}));
  return std::move(encoded.ids);
}

void PrintTable(const std::vector<EvalRow>& rows) {
  std::printf("%-22s %7s %9s %9s %9s %10s %21s %9s %7s %8s\n", "kv", "bits", "B/token", "nats",
              "ppl", "over f16", "95 % interval", "KL", "top-1", "seconds");
  for (const EvalRow& r : rows) {
    std::printf("%-22s %7.3f %9.1f %9.5f %9.3f %+10.5f [%+9.5f,%+9.5f] %9.5f %6.2f%% %8.1f\n",
                r.kv.c_str(), r.bits, r.bytes_per_token, r.nats, r.ppl, r.nats_over_f16,
                r.ci95.first, r.ci95.second, r.kl, 100 * r.top1, r.seconds);
  }
}

nlohmann::ordered_json RowJson(const EvalRow& r) {
  return {{"kv", r.kv},
          {"bits", r.bits},
          {"bytes_per_token", r.bytes_per_token},
          {"nats", r.nats},
          {"ppl", r.ppl},
          {"nats_over_f16", r.nats_over_f16},
          {"ci95", {r.ci95.first, r.ci95.second}},
          {"kl", r.kl},
          {"top1", r.top1},
          {"seconds", r.seconds},
          {"window_nats", r.window_nats},
          {"window_kl", r.window_kl},
          {"saturated", r.saturated},
          {"clamped", r.clamped}};
}

absl::Status WriteJson(const EvalFlags& flags, const EvalOptions& options,
                       const std::vector<EvalRow>& rows, const std::string& path) {
  nlohmann::ordered_json json = {{"model", flags.model.model},
                                 {"text", flags.text},
                                 {"window", options.window},
                                 {"windows", options.windows},
                                 {"start", options.start},
                                 {"numerics", options.numerics},
                                 {"visibility", flags.model.visibility},
                                 {"rows", nlohmann::ordered_json::array()}};
  for (const EvalRow& row : rows) json["rows"].push_back(RowJson(row));
  return WriteTextFile(path, json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

absl::Status RunEval(const EvalFlags& flags, const GlobalOptions& global) {
  EndOnInterrupt();
  EvalOptions options;
  options.codecs = SplitCodecList(flags.codecs);
  KVRING_ASSIGN_OR_RETURN(options.window, ParseLength(flags.window));
  KVRING_ASSIGN_OR_RETURN(options.start, ParseLength(flags.start));
  if (!flags.chunk.empty()) {
    KVRING_ASSIGN_OR_RETURN(options.chunk, ParseLength(flags.chunk));
  }
  options.windows = flags.windows;
  options.ranks = flags.ranks;
  options.block_tokens = flags.model.block_tokens;
  options.virtual_shards = flags.model.virtual_shards;
  options.threads = ThreadsPerRank(global.threads, flags.ranks);
  KVRING_ASSIGN_OR_RETURN(options.rule, ParseVisibility(flags.model));
  KVRING_ASSIGN_OR_RETURN(const OpenModel model, OpenModelFile(flags.model.model));
  KVRING_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, TextIds(model, flags.text));
  KVRING_ASSIGN_OR_RETURN(const LinearMath math, ParseMath(flags.model.math));
  options.numerics = NumericsId(math);
  WeightsOptions weights;
  weights.math = math;
  KVRING_ASSIGN_OR_RETURN(options.weights, Weights::Load(model.file, model.config, weights));
  Progress progress("eval", "windows",
                    options.windows * static_cast<int64_t>(options.codecs.size()), global.quiet);
  KVRING_ASSIGN_OR_RETURN(
      const std::vector<EvalRow> rows,
      Evaluate(options, ids, [&](int64_t done, int64_t) { progress.Update(done); }));
  progress.Finish();
  if (global.json != "-") PrintTable(rows);
  return global.json.empty() ? absl::OkStatus() : WriteJson(flags, options, rows, global.json);
}

}  // namespace

CommandAction AddEvalCommand(CLI::App& app, const GlobalOptions& global) {
  auto flags = std::make_shared<EvalFlags>();
  flags->model.visibility = "teacher";
  AddModelFlags(app, flags->model);
  app.add_option("-f,--file,--text", flags->text, "text to score")->required();
  app.add_option("--kv", flags->codecs, "codecs, a list")->capture_default_str();
  app.add_option("--window", flags->window, "tokens of a window")->capture_default_str();
  app.add_option("--windows", flags->windows, "windows")->capture_default_str();
  app.add_option("--start", flags->start, "first token of the first window")->capture_default_str();
  app.add_option("--chunk", flags->chunk, "tokens a step (default: the whole window)");
  app.add_option("--ranks", flags->ranks, "ranks, as threads")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  return [flags, &global] { return RunEval(*flags, global); };
}

}  // namespace kvring
