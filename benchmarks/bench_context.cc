// SPDX-License-Identifier: Apache-2.0
// Decode at given depths of context, and prefill of given lengths, with a real model file. Contexts are synthetic
// (benchmarks/synthetic_context.h); prompts are random tokens.
//
// Depths and codecs take turns in rounds, so that what else runs on the machine meets all of them alike; figures are
// medians of all tokens, with quartiles. Decode time per token is fitted by a straight line in the tokens of the context: its slope is
// the bytes of pages a token adds, divided by a share of the bandwidth that this machine reads with, measured in the same run.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "benchmarks/line_fit.h"
#include "benchmarks/machine_peak.h"
#include "benchmarks/run_facts.h"
#include "benchmarks/synthetic_context.h"
#include "kernels/parallel.h"
#include "kvstore/calibration_file.h"
#include "kvstore/codec_spec.h"
#include "launch/json_file.h"
#include "launch/lengths.h"
#include "runtime/base/clock.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/numerics.h"
#include "runtime/engine/rank_group.h"

namespace kvring {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  std::string model, math = "auto", attention_math = "int8", fill = "auto", calibration, json;
  std::vector<std::string> kv{"rot4"}, depths{"4K", "8K", "16K", "32K", "64K", "128K"}, prefill;
  int64_t tokens = 16, rounds = 3, prefill_rounds = 3, block_tokens = 64;
  int threads = 0;
  bool small_pages = false;
};

// Above this, filling by the encoder takes minutes.
constexpr int64_t kEncodeAtMost = 262144;

struct Setup {
  std::shared_ptr<const GgufFile> file;
  std::shared_ptr<const Weights> weights;
  std::shared_ptr<const CodecTables> tables;
  AttentionForm attention;
  std::string numerics;
  std::vector<int64_t> depths, prefill;
  int threads = 1;
};

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

// One codec: its ranks (one), its contexts, what was measured.
struct Subject {
  std::string spec, fill;
  std::shared_ptr<const Codec> codec;
  std::unique_ptr<RankGroup> group;
  std::unique_ptr<SyntheticContext> context;
  double fill_seconds = 0;
  std::map<int64_t, std::vector<double>> decode, length;  // by depth: seconds and tokens seen
  std::map<int64_t, std::vector<double>> prefill;         // by length: seconds
  int64_t prefill_chunk = 0;
};

SequenceId IdOf(int64_t depth) { return static_cast<SequenceId>(depth) << 20; }

absl::StatusOr<std::vector<int64_t>> Lengths(const std::vector<std::string>& texts) {
  std::vector<int64_t> lengths;
  for (const std::string& text : texts) {
    KVRING_ASSIGN_OR_RETURN(const int64_t length, ParseLength(text));
    lengths.push_back(length);
  }
  std::sort(lengths.begin(), lengths.end());
  return lengths;
}

absl::StatusOr<Setup> Open(const Flags& flags) {
  Setup setup;
  KVRING_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, GgufFile::Open(flags.model));
  setup.file = std::move(file);
  KVRING_ASSIGN_OR_RETURN(const ModelConfig config, DeriveModelConfig(*setup.file));
  KVRING_ASSIGN_OR_RETURN(setup.depths, Lengths(flags.depths));
  KVRING_ASSIGN_OR_RETURN(setup.prefill, Lengths(flags.prefill));
  if (!flags.calibration.empty()) {
    KVRING_ASSIGN_OR_RETURN(const Calibration calibration, ReadCalibration(flags.calibration));
    setup.tables = calibration.tables;
  }
  setup.threads = flags.threads > 0 ? flags.threads : CpuCores();
  SetThreads(setup.threads);
  WeightsOptions weights;
  KVRING_ASSIGN_OR_RETURN(weights.math, ParseMath(flags.math, *setup.file, config));
  KVRING_ASSIGN_OR_RETURN(setup.attention, ParseAttention(flags.attention_math, ""));
  setup.numerics = NumericsId(weights.math, setup.attention);
  KVRING_ASSIGN_OR_RETURN(setup.weights, Weights::Load(setup.file, config, weights));
  return setup;
}

absl::StatusOr<Subject> MakeSubject(const Flags& flags, const Setup& setup,
                                    const std::string& spec) {
  Subject subject;
  subject.spec = spec;
  const ModelConfig& config = setup.weights->config();
  std::vector<const RopeTable*> rope;
  for (const RopeTable& table : config.rope) rope.push_back(&table);
  ExecutorOptions options;
  KVRING_ASSIGN_OR_RETURN(options.codec,
                          MakeCodec(spec, config.kv_shape(flags.block_tokens), rope, setup.tables));
  options.weights = setup.weights;
  options.block_tokens = flags.block_tokens;
  options.attention = setup.attention;
  options.numerics = setup.numerics;
  options.huge_pages = !flags.small_pages;
  subject.codec = options.codec;
  KVRING_ASSIGN_OR_RETURN(subject.group, RankGroup::Threads(1, setup.threads, options));
  subject.context = std::make_unique<SyntheticContext>(&subject.group->leader(), config,
                                                       setup.numerics, SyntheticOptions());
  return subject;
}

// The longest context is filled; the others are forks of it.
absl::Status Fill(const Flags& flags, const Setup& setup, Subject& subject) {
  if (setup.depths.empty()) return absl::OkStatus();
  const int64_t longest = setup.depths.back();
  const bool copy = flags.fill == "copy" || (flags.fill == "auto" && longest > kEncodeAtMost);
  subject.fill = copy ? "copied pages" : "encoded";
  const Stopwatch watch;
  SyntheticContext& context = *subject.context;
  KVRING_RETURN_IF_ERROR(copy ? context.MakeCopied(IdOf(longest), longest)
                              : context.MakeEncoded(IdOf(longest), longest));
  subject.fill_seconds = watch.Seconds();
  for (const int64_t depth : setup.depths) {
    if (depth == longest) continue;
    KVRING_RETURN_IF_ERROR(context.Fork(IdOf(depth), IdOf(longest), depth));
  }
  std::fprintf(stderr, "%s: %lld synthetic tokens (%s) in %.1f s\n", subject.spec.c_str(),
               static_cast<long long>(longest), subject.fill.c_str(), subject.fill_seconds);
  return absl::OkStatus();
}

absl::Status DecodeRound(const Flags& flags, const Setup& setup, std::vector<Subject>& subjects) {
  for (const int64_t depth : setup.depths) {
    for (Subject& subject : subjects) {
      for (int64_t i = 0; i < flags.tokens; ++i) {
        subject.length[depth].push_back(
            static_cast<double>(subject.context->shard(IdOf(depth)).length()));
        const Stopwatch watch;
        KVRING_RETURN_IF_ERROR(subject.context->Decode(IdOf(depth)));
        subject.decode[depth].push_back(watch.Seconds());
      }
    }
  }
  return absl::OkStatus();
}

// As `kvring run` reads a prompt: chunks that grow with the speed, until the first token is there.
absl::StatusOr<double> Prefill(const Flags& flags, const Setup& setup, Subject& subject,
                               int64_t length) {
  EngineOptions options;
  options.weights = setup.weights;
  options.codec = subject.codec;
  options.block_tokens = flags.block_tokens;
  options.numerics = setup.numerics;
  KVRING_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                          Engine::Create(options, &subject.group->leader()));
  EngineRequest request;
  for (int64_t i = 0; i < length; ++i)
    request.prompt.push_back(static_cast<int32_t>(i * 7919 % setup.weights->config().vocab));
  request.max_new_tokens = 1;
  absl::Status status;
  request.on_done = [&](SequenceId, const absl::Status& done, const std::string&) {
    status = done;
  };
  const Stopwatch watch;
  KVRING_RETURN_IF_ERROR(engine->Submit(std::move(request)).status());
  KVRING_RETURN_IF_ERROR(engine->RunUntilIdle());
  const double seconds = watch.Seconds();
  KVRING_RETURN_IF_ERROR(status);
  subject.prefill_chunk = std::max(subject.prefill_chunk, engine->chunk());
  KVRING_RETURN_IF_ERROR(engine->Step());  // closes the sequence
  return seconds;
}

absl::Status PrefillRounds(const Flags& flags, const Setup& setup, std::vector<Subject>& subjects) {
  for (int64_t round = 0; round < flags.prefill_rounds; ++round) {
    for (const int64_t length : setup.prefill) {
      for (Subject& subject : subjects) {
        KVRING_ASSIGN_OR_RETURN(const double seconds, Prefill(flags, setup, subject, length));
        subject.prefill[length].push_back(seconds);
      }
    }
  }
  return absl::OkStatus();
}

Json DecodeRows(Subject& subject) {
  Json rows = Json::array();
  for (const auto& [depth, seconds] : subject.decode) {
    const SequenceShard& shard = subject.context->shard(IdOf(depth));
    const double median = Quantile(seconds, 0.5);
    rows.push_back(
        {{"depth", depth},
         {"tokens_per_s", 1 / median},
         {"ms_per_token", 1e3 * median},
         {"ms_quartiles", {1e3 * Quantile(seconds, 0.25), 1e3 * Quantile(seconds, 0.75)}},
         {"tokens_timed", seconds.size()},
         {"kv_bytes", shard.bytes()},
         {"page_bytes", shard.page_bytes()}});
  }
  return rows;
}

// Of median time per token against tokens in the context. The first point is not left out: a line that fits says that nothing but
// reading pages grows.
Json FitRows(Subject& subject, double page_bytes_per_token, double read_rate) {
  std::vector<double> tokens, seconds;
  for (const auto& [depth, measured] : subject.decode) {
    tokens.push_back(Quantile(subject.length[depth], 0.5));
    seconds.push_back(Quantile(measured, 0.5));
  }
  if (tokens.size() < 3) return nullptr;
  const LineFit fit = FitLine(tokens, seconds);
  const double rate = page_bytes_per_token / fit.slope;
  return {{"r2", fit.r2},
          {"ns_per_context_token", 1e9 * fit.slope},
          {"ms_at_empty_context", 1e3 * fit.intercept},
          {"bytes_per_context_token", page_bytes_per_token},
          {"bytes_per_s", rate},
          {"share_of_read_bandwidth", rate / read_rate}};
}

Json SubjectJson(const Setup& setup, Subject& subject, double read_rate) {
  const KvShape shape =
      setup.weights->config().kv_shape(subject.group->leader().kv().options().shape.block_tokens);
  const double bits = BitsPerElement(*subject.codec, shape);
  const double per_token = bits / 8 * shape.layers * shape.kv_heads * (shape.dk + shape.dv);
  Json json = {{"kv", subject.spec},
               {"bits", bits},
               {"fill", subject.fill},
               {"fill_seconds", subject.fill_seconds},
               {"pool_huge_bytes", subject.group->leader().kv().pool().huge_bytes()}};
  json["decode"] = DecodeRows(subject);
  json["fit"] = FitRows(subject, per_token, read_rate);
  json["prefill_chunk"] = subject.prefill_chunk;
  json["prefill"] = Json::array();
  for (const auto& [length, seconds] : subject.prefill) {
    const double median = Quantile(seconds, 0.5);
    json["prefill"].push_back({{"tokens", length},
                               {"tokens_per_s", static_cast<double>(length) / median},
                               {"seconds", median},
                               {"fastest_seconds", Quantile(seconds, 0)},
                               {"runs", seconds.size()}});
  }
  return json;
}

void Print(const Json& result) {
  for (const Json& subject : result["subjects"]) {
    const std::string kv = subject["kv"];
    for (const Json& row : subject["decode"]) {
      std::fputs(
          absl::StrFormat("%-8s decode  %9d synthetic tokens %8.2f tokens/s  %6.2f GB of KV\n", kv,
                          row["depth"].get<int64_t>(), row["tokens_per_s"].get<double>(),
                          row["kv_bytes"].get<double>() * 1e-9)
              .c_str(),
          stderr);
    }
    if (!subject["fit"].is_null()) {
      const Json& fit = subject["fit"];
      std::fputs(
          absl::StrFormat("%-8s line    R^2 %.5f, %.2f ns a token of context, %.1f GB/s: "
                          "%.0f %% of the read bandwidth\n",
                          kv, fit["r2"].get<double>(), fit["ns_per_context_token"].get<double>(),
                          fit["bytes_per_s"].get<double>() * 1e-9,
                          100 * fit["share_of_read_bandwidth"].get<double>())
              .c_str(),
          stderr);
    }
    for (const Json& row : subject["prefill"]) {
      std::fputs(absl::StrFormat("%-8s prefill %9d tokens %8.1f tokens/s\n", kv,
                                 row["tokens"].get<int64_t>(), row["tokens_per_s"].get<double>())
                     .c_str(),
                 stderr);
    }
  }
}

absl::Status Measure(const Flags& flags, const std::string& command) {
  if (flags.fill != "auto" && flags.fill != "encode" && flags.fill != "copy") {
    return absl::InvalidArgumentError(
        absl::StrCat("--fill '", flags.fill, "' is unknown: use auto, encode or copy"));
  }
  KVRING_ASSIGN_OR_RETURN(const Setup setup, Open(flags));
  Json result = {{"program", "bench_context"}, {"command", command}};
  for (const auto& [name, value] : RunFacts()) result[name] = value;
  result["model"] = flags.model.substr(flags.model.rfind('/') + 1);
  result["numerics"] = setup.numerics;
  result["threads"] = setup.threads;
  result["context"] = "synthetic";
  const double read_before = PeakReadBytesAll(setup.threads);
  std::ofstream("/proc/self/clear_refs") << "5";  // the arrays of that are not part of the peak
  std::vector<Subject> subjects;
  for (const std::string& spec : flags.kv) {
    KVRING_ASSIGN_OR_RETURN(Subject subject, MakeSubject(flags, setup, spec));
    subjects.push_back(std::move(subject));
  }
  for (Subject& subject : subjects) {
    KVRING_RETURN_IF_ERROR(Annotate(Fill(flags, setup, subject), subject.spec));
  }
  for (int64_t round = 0; round < flags.rounds; ++round)
    KVRING_RETURN_IF_ERROR(DecodeRound(flags, setup, subjects));
  result["rss_bytes"] = ProcessRssBytes();
  KVRING_RETURN_IF_ERROR(PrefillRounds(flags, setup, subjects));
  result["peak_rss_bytes"] = ProcessPeakRssBytes();
  result["swapped_bytes"] = SwappedBytes();
  // The better of before and after: what others did meanwhile only lowers it.
  const double read_rate = std::max(read_before, PeakReadBytesAll(setup.threads));
  result["read_bytes_per_s"] = read_rate;
  for (Subject& subject : subjects)
    result["subjects"].push_back(SubjectJson(setup, subject, read_rate));
  Print(result);
  std::fprintf(stderr, "read bandwidth %.1f GB/s, RSS %.2f GB, swapped %lld bytes\n",
               read_rate * 1e-9, result["rss_bytes"].get<double>() * 1e-9,
               static_cast<long long>(result["swapped_bytes"].get<int64_t>()));
  return flags.json.empty() ? absl::OkStatus() : WriteTextFile(flags.json, result.dump(1));
}

}  // namespace
}  // namespace kvring

int main(int argc, char** argv) {
  kvring::Flags flags;
  CLI::App app("Decode at depths of synthetic context, and prefill, with a real model.");
  app.add_option("-m,--model", flags.model, "GGUF file")->required();
  app.add_option("--kv", flags.kv, "codecs, taking turns")->delimiter(',')->capture_default_str();
  app.add_option("--depths", flags.depths, "tokens of context, or none")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--prefill", flags.prefill, "prompts to read, tokens")->delimiter(',');
  app.add_option("-n", flags.tokens, "tokens to decode at each depth and round")
      ->capture_default_str();
  app.add_option("--rounds", flags.rounds, "of decoding")->capture_default_str();
  app.add_option("--prefill-rounds", flags.prefill_rounds)->capture_default_str();
  app.add_option("--fill", flags.fill,
                 "encode: through append and encode; copy: copies of 16K encoded tokens; auto: "
                 "copy above 256K tokens")
      ->capture_default_str();
  app.add_option("--math", flags.math, "products of linear layers")->capture_default_str();
  app.add_option("--attention-math", flags.attention_math, "tile or int8")->capture_default_str();
  app.add_option("--calibration", flags.calibration, "tables of calibrated codecs");
  app.add_option("-t,--threads", flags.threads, "0: all cores")->capture_default_str();
  app.add_flag("--small-pages", flags.small_pages, "no huge pages for the KV cache");
  app.add_option("--json", flags.json, "file to write, - for standard output");
  CLI11_PARSE(app, argc, argv);
  std::erase(flags.depths, "none");
  std::string command = "bench_context";
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  const absl::Status status = kvring::Measure(flags, command);
  if (status.ok()) return 0;
  std::fprintf(stderr, "bench_context: %s\n", std::string(status.message()).c_str());
  return 1;
}
