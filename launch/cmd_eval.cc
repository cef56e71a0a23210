// SPDX-License-Identifier: Apache-2.0
// `kvring eval`: quality against bytes, as a table and as JSON.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "kvstore/codec_spec.h"
#include "launch/auto_rate.h"
#include "launch/calibration_lookup.h"
#include "launch/command.h"
#include "launch/eval_report.h"
#include "launch/job.h"
#include "launch/lengths.h"
#include "launch/model_options.h"
#include "launch/progress.h"
#include "launch/prompt.h"
#include "runtime/eval/evaluator.h"
#include "runtime/eval/retrieval.h"
#include "runtime/model/vocab_reader.h"
#include "runtime/text/tokenizer.h"

namespace kvring {
namespace {

struct EvalFlags {
  EvalFlags() { model.attention_math = "tile"; }  // the codec alone, not how it is read

  ModelFlags model;
  std::string text;
  std::string codecs = "f16,rot4";
  std::string window = "2048", start = "0", chunk;
  int64_t windows = 16;
  int ranks = 1;
  std::string task = "loss";
  NeedleOptions needles;
  std::string length = "2048";
  bool retrieval() const { return task == "retrieval"; }
};

// All that both tasks need, but the weights.
struct EvalSession {
  OpenModel model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<int32_t> ids;
  EvalOptions options;
  EvalHead head;
};

absl::Status ReadFlags(const EvalFlags& flags, const GlobalOptions& global, EvalSession& s) {
  EvalOptions& options = s.options;
  ModelFlags model = flags.model;
  // Codecs are compared on all their tokens; a question is asked to a cache as it is used.
  if (model.visibility.empty()) model.visibility = flags.retrieval() ? "packed" : "teacher";
  options.codecs = SplitCodecList(flags.codecs);
  if (std::any_of(options.codecs.begin(), options.codecs.end(), IsAutoRate)) {
    return absl::InvalidArgumentError(
        "tc@auto chooses by the context and memory of a run: name rates here, as in tc3,tc@2.7");
  }
  KVRING_ASSIGN_OR_RETURN(options.window, ParseLength(flags.window));
  KVRING_ASSIGN_OR_RETURN(options.start, ParseLength(flags.start));
  if (!flags.chunk.empty()) {
    KVRING_ASSIGN_OR_RETURN(options.chunk, ParseLength(flags.chunk));
  }
  options.windows = flags.windows;
  options.ranks = flags.ranks;
  options.block_tokens = model.block_tokens;
  options.virtual_shards = model.virtual_shards;
  options.threads = ThreadsPerRank(global.threads, flags.ranks);
  KVRING_ASSIGN_OR_RETURN(options.rule, ParseVisibility(model));
  s.head = {model.model, flags.text, model.visibility, "", {}};
  return absl::OkStatus();
}

absl::Status OpenAll(const EvalFlags& flags, EvalSession& s) {
  KVRING_ASSIGN_OR_RETURN(s.model, OpenModelFile(flags.model.model));
  KVRING_ASSIGN_OR_RETURN(const VocabData vocab, ReadVocab(*s.model.file));
  KVRING_ASSIGN_OR_RETURN(s.tokenizer, Tokenizer::Create(vocab));
  KVRING_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(flags.text));
  KVRING_ASSIGN_OR_RETURN(EncodeResult encoded,
                          s.tokenizer->Encode(text, {BeginToken::kNever, false}));
  s.ids = std::move(encoded.ids);
  KVRING_ASSIGN_OR_RETURN(CalibrationChoice calibration,
                          FindCalibration(flags.model.calibration, s.options.codecs,
                                          flags.model.model, s.model, s.options.block_tokens));
  s.options.tables = calibration.tables;
  s.head.calibration = std::move(calibration.used);
  return absl::OkStatus();
}

absl::Status LoadWeights(const EvalFlags& flags, EvalSession& s) {
  KVRING_ASSIGN_OR_RETURN(const LinearMath math,
                          ParseMath(flags.model.math, *s.model.file, s.model.config));
  KVRING_ASSIGN_OR_RETURN(s.options.attention, ParseAttention(flags.model.attention_math,
                                                              flags.model.attention_rounding));
  s.head.numerics = s.options.numerics = NumericsId(math, s.options.attention);
  WeightsOptions weights;
  weights.math = math;
  KVRING_ASSIGN_OR_RETURN(s.options.weights, Weights::Load(s.model.file, s.model.config, weights));
  return absl::OkStatus();
}

absl::Status RunLoss(const EvalFlags& flags, const GlobalOptions& global, EvalSession& s) {
  KVRING_RETURN_IF_ERROR(LoadWeights(flags, s));
  Progress progress("eval", "windows",
                    s.options.windows * static_cast<int64_t>(s.options.codecs.size()),
                    global.quiet);
  KVRING_ASSIGN_OR_RETURN(
      const std::vector<EvalRow> rows,
      Evaluate(s.options, s.ids, [&](int64_t done, int64_t) { progress.Update(done); }));
  progress.Finish();
  if (global.json != "-") PrintEvalTable(rows);
  return global.json.empty() ? absl::OkStatus()
                             : WriteEvalJson(s.head, s.options, rows, global.json);
}

absl::Status RunRetrieval(const EvalFlags& flags, const GlobalOptions& global, EvalSession& s) {
  NeedleOptions needles = flags.needles;
  KVRING_ASSIGN_OR_RETURN(needles.length, ParseLength(flags.length));
  const int64_t trained = s.model.config.trained_context;
  if (trained > 0 && needles.length > trained) {
    return absl::InvalidArgumentError(absl::StrCat("--length ", needles.length, " is beyond the ",
                                                   trained,
                                                   " tokens that the model was trained for"));
  }
  KVRING_ASSIGN_OR_RETURN(const std::vector<NeedleText> texts,
                          PlantNeedles(*s.tokenizer, s.ids, needles));
  KVRING_RETURN_IF_ERROR(LoadWeights(flags, s));
  Progress progress("eval", "texts",
                    needles.texts * (static_cast<int64_t>(s.options.codecs.size()) + 1),
                    global.quiet);
  KVRING_ASSIGN_OR_RETURN(
      const RetrievalResult result,
      EvaluateRetrieval(s.options, texts, [&](int64_t done, int64_t) { progress.Update(done); }));
  progress.Finish();
  if (global.json != "-") PrintRetrievalTable(result);
  return global.json.empty() ? absl::OkStatus()
                             : WriteRetrievalJson(s.head, needles, texts, result, global.json);
}

absl::Status RunEval(const EvalFlags& flags, const GlobalOptions& global) {
  EndOnInterrupt();
  EvalSession session;
  KVRING_RETURN_IF_ERROR(ReadFlags(flags, global, session));
  KVRING_RETURN_IF_ERROR(OpenAll(flags, session));
  return flags.retrieval() ? RunRetrieval(flags, global, session) : RunLoss(flags, global, session);
}

}  // namespace

CommandAction AddEvalCommand(CLI::App& app, const GlobalOptions& global) {
  auto flags = std::make_shared<EvalFlags>();
  flags->model.visibility = "";  // by task
  AddModelFlags(app, flags->model);
  AddCalibrationFlag(app, flags->model);
  app.add_option("-f,--file,--text", flags->text, "text to score")->required();
  app.add_option("--kv", flags->codecs, "codecs, a list")->capture_default_str();
  app.add_option("--window", flags->window, "tokens of a window")->capture_default_str();
  app.add_option("--windows", flags->windows, "windows")->capture_default_str();
  app.add_option("--start", flags->start, "first token of the first window")->capture_default_str();
  app.add_option("--chunk", flags->chunk, "tokens a step (default: the whole window)");
  app.add_option("--ranks", flags->ranks, "ranks, as threads")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option(
      "--attention-rounding", flags->model.attention_rounding,
      "with --attention-math int8, round these alone: query, bias, weights, none (slow)");
  app.add_option("--task", flags->task,
                 "loss: every token scored (--visibility teacher); retrieval: sentences planted in "
                 "the text and asked for (--visibility packed)")
      ->capture_default_str()
      ->check(CLI::IsMember({"loss", "retrieval"}));
  app.add_option("--texts", flags->needles.texts, "retrieval: texts")->capture_default_str();
  app.add_option("--depths", flags->needles.depths, "retrieval: sentences planted in each text")
      ->capture_default_str();
  app.add_option("--length", flags->length, "retrieval: tokens of a text with a question")
      ->capture_default_str();
  app.add_option("--seed", flags->needles.seed, "retrieval: of keys and phrases")
      ->capture_default_str();
  return [flags, &global] { return RunEval(*flags, global); };
}

}  // namespace kvring
