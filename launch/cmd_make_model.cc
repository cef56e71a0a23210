// SPDX-License-Identifier: Apache-2.0
// `kvring make-model -o FILE`: a tiny random model with a complete vocabulary, for tests and trials without a network.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "launch/command.h"
#include "launch/json_file.h"
#include "runtime/model/tiny_model.h"

namespace kvring {
namespace {

struct MakeModelOptions {
  std::string file;
  TinyModelOptions model;
};

void AddShape(CLI::App& app, TinyModelOptions& m) {
  app.add_option("--seed", m.seed, "same seed and options: same bytes everywhere")
      ->capture_default_str();
  app.add_option("--arch", m.architecture, "llama or qwen2")->capture_default_str();
  app.add_option("--layers", m.layers)->capture_default_str();
  app.add_option("--hidden", m.hidden)->capture_default_str();
  app.add_option("--heads", m.query_heads, "query heads")->capture_default_str();
  app.add_option("--kv-heads", m.kv_heads)->capture_default_str();
  app.add_option("--head-dim", m.head_dim, "of keys, and of values unless --value-dim")
      ->capture_default_str();
  app.add_option("--value-dim", m.value_dim, "0: head-dim")->capture_default_str();
  app.add_option("--ffn", m.ffn, "width of the feed-forward layers")->capture_default_str();
  app.add_option("--vocab", m.vocab, "tokens")->capture_default_str();
  app.add_option("--trained-context", m.trained_context, "declared length; -1: not declared")
      ->capture_default_str();
  app.add_option("--type", m.weight_type, "of matrices: f32, f16, q8_0")->capture_default_str();
  const std::map<std::string, TinyOutput> outputs = {
      {"tied", TinyOutput::kTied}, {"copy", TinyOutput::kCopy}, {"own", TinyOutput::kOwn}};
  app.add_option("--output-head", m.output,
                 "tied to the embedding, a copy of it, or its own numbers")
      ->transform(CLI::CheckedTransformer(outputs));
}

void AddRope(CLI::App& app, TinyModelOptions& m) {
  app.add_option("--rope-base", m.rope_base)->capture_default_str();
  app.add_option("--rope-scaling", m.rope_scaling, "none, linear, yarn, llama3")
      ->capture_default_str();
  app.add_option("--rope-factor", m.rope_factor)->capture_default_str();
  app.add_option("--rope-low", m.rope_low, "low_freq_factor of llama3")->capture_default_str();
  app.add_option("--rope-high", m.rope_high, "high_freq_factor of llama3")->capture_default_str();
  app.add_option("--rope-original-context", m.rope_original_context)->capture_default_str();
}

void AddHardKeys(CLI::App& app, TinyModelOptions& m) {
  app.add_option("--key-bias", m.key_bias, "bias of 3 channels of every key head")
      ->capture_default_str();
  app.add_option("--sink-scale", m.sink_scale, "keys of --sink-token are this much longer")
      ->capture_default_str();
  app.add_option("--sink-token", m.sink_token)->capture_default_str();
}

absl::Status MakeModel(const MakeModelOptions& options, const GlobalOptions& global) {
  KVRING_ASSIGN_OR_RETURN(const GgufWriter writer, MakeTinyModel(options.model));
  KVRING_RETURN_IF_ERROR(writer.Write(options.file));
  if (!global.quiet && global.json != "-") absl::PrintF("%s\n", options.file);
  if (global.json.empty()) return absl::OkStatus();
  const nlohmann::json json = {{"file", options.file}};
  return WriteTextFile(global.json,
                       json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

CommandAction AddMakeModelCommand(CLI::App& app, const GlobalOptions& global) {
  auto options = std::make_shared<MakeModelOptions>();
  app.add_option("-o,--output", options->file, "GGUF file to write")->required();
  AddShape(app, options->model);
  AddRope(app, options->model);
  AddHardKeys(app, options->model);
  return [options, &global] { return MakeModel(*options, global); };
}

}  // namespace kvring
