// SPDX-License-Identifier: Apache-2.0
// `kvring inspect FILE`: the header, the tensors, the derived shape, or the one thing that is wrong.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "launch/command.h"
#include "launch/json_file.h"
#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"

namespace kvring {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownElements = 8;  // of an array
constexpr size_t kShownBytes = 100;   // of a string

struct InspectOptions {
  std::string file;
};

std::string Shown(const std::string& text) {
  const std::string head = absl::Utf8SafeCEscape(text.substr(0, kShownBytes));
  return absl::StrCat("\"", head, text.size() > kShownBytes ? "...\"" : "\"");
}

std::string ShowValue(const GgufValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return Shown(v);
        } else if constexpr (std::is_same_v<T, bool>) {
          return v ? "true" : "false";
        } else if constexpr (std::is_arithmetic_v<T>) {
          return absl::StrCat(v);
        } else {
          std::vector<std::string> first;
          for (size_t i = 0; i < std::min(kShownElements, v->values.size()); ++i)
            first.push_back(ShowValue(v->values[i]));
          const char* more = v->values.size() > kShownElements ? ", ..." : "";
          return absl::StrCat(v->values.size(), " values [", absl::StrJoin(first, ", "), more, "]");
        }
      },
      value);
}

Json ValueJson(const GgufValue& value) {
  return std::visit(
      [](const auto& v) -> Json {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::shared_ptr<GgufArray>>) {
          Json first = Json::array();
          for (size_t i = 0; i < std::min(kShownElements, v->values.size()); ++i)
            first.push_back(ValueJson(v->values[i]));
          return {{"length", v->values.size()}, {"first", first}};
        } else {
          return v;
        }
      },
      value);
}

std::map<std::string, int64_t> CountTypes(const GgufFile& file) {
  std::map<std::string, int64_t> counts;
  for (const GgufTensor& tensor : file.tensors()) ++counts[tensor.format->name];
  return counts;
}

// K and V of one token over all layers and KV heads in fp16.
int64_t F16KvBytesPerToken(const ModelConfig& c) {
  return int64_t{2} * c.layers * c.kv_heads * (c.dk + c.dv);
}

const char* PairingName(const ModelConfig& c) {
  return c.rope.front().pairing == RopePairing::kInterleaved ? "interleaved" : "half-split";
}

void PrintFile(const GgufFile& file) {
  std::vector<std::string> types;
  for (const auto& [type, count] : CountTypes(file))
    types.push_back(absl::StrCat(count, " ", type));
  absl::PrintF("%s: GGUF %d, %d bytes, alignment %d, %d keys, %d tensors (%s)\n\n", file.path(),
               file.version(), file.file_bytes(), file.alignment(), file.metadata().size(),
               file.tensors().size(), absl::StrJoin(types, ", "));
  for (const auto& [key, value] : file.metadata()) {
    absl::PrintF("%s = %s\n", absl::Utf8SafeCEscape(key), ShowValue(value));
  }
  absl::PrintF("\n");
  for (const GgufTensor& tensor : file.tensors()) {
    absl::PrintF("%-40s %-5s [%s] %d bytes at %d\n", absl::Utf8SafeCEscape(tensor.name),
                 tensor.format->name, absl::StrJoin(tensor.dims, ", "), tensor.data.size(),
                 tensor.offset);
  }
  for (const std::string& warning : file.warnings()) absl::PrintF("\nwarning: %s\n", warning);
}

void PrintShape(const ModelConfig& c) {
  absl::PrintF(
      "\n%s \"%s\": %d layers, hidden %d, %d query heads on %d KV heads, head_dim %d (keys) %d "
      "(values), "
      "feed-forward %d, vocabulary %d\n",
      c.architecture, absl::Utf8SafeCEscape(c.name), c.layers, c.hidden, c.query_heads, c.kv_heads,
      c.dk, c.dv, c.ffn, c.vocab);
  absl::PrintF("RoPE: %d planes, %s pairs, scaling %s\n", c.rope.front().planes(), PairingName(c),
               c.rope_scaling);
  absl::PrintF("trained context: %s\n",
               c.trained_context == 0 ? "not said" : absl::StrCat(c.trained_context, " tokens"));
  absl::PrintF("output head: %s\n", c.tied_output ? "the embedding (tied)" : "a tensor of its own");
  absl::PrintF("KV cache at f16: %d bytes a token\n", F16KvBytesPerToken(c));
  for (const std::string& warning : c.warnings) absl::PrintF("warning: %s\n", warning);
}

Json FileJson(const GgufFile& file) {
  Json json = {{"file", file.path()},
               {"version", file.version()},
               {"alignment", file.alignment()},
               {"file_bytes", file.file_bytes()},
               {"tensor_types", CountTypes(file)},
               {"metadata", Json::object()},
               {"tensors", Json::array()},
               {"warnings", file.warnings()}};
  for (const auto& [key, value] : file.metadata()) json["metadata"][key] = ValueJson(value);
  for (const GgufTensor& tensor : file.tensors()) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"type", tensor.format->name},
                               {"dims", tensor.dims},
                               {"offset", tensor.offset},
                               {"bytes", tensor.data.size()}});
  }
  return json;
}

Json ShapeJson(const ModelConfig& c) {
  return {{"architecture", c.architecture},
          {"name", c.name},
          {"layers", c.layers},
          {"hidden", c.hidden},
          {"query_heads", c.query_heads},
          {"kv_heads", c.kv_heads},
          {"head_dim", c.dk},
          {"value_dim", c.dv},
          {"ffn", c.ffn},
          {"vocab", c.vocab},
          {"rms_epsilon", c.rms_epsilon},
          {"trained_context", c.trained_context},
          {"tied_output", c.tied_output},
          {"rope",
           {{"scaling", c.rope_scaling},
            {"pairing", PairingName(c)},
            {"attention_scale", c.rope.front().attention_scale},
            {"inv_freq", c.rope.front().inv_freq}}},
          {"kv_bytes_f16_per_token", F16KvBytesPerToken(c)}};
}

absl::Status WriteJson(const GlobalOptions& global, const Json& json) {
  if (global.json.empty()) return absl::OkStatus();
  // Names in a file may be any bytes; JSON is UTF-8.
  return WriteTextFile(global.json, json.dump(2, ' ', false, Json::error_handler_t::replace));
}

absl::Status Inspect(const InspectOptions& options, const GlobalOptions& global) {
  const bool text = global.json != "-";
  const auto file = GgufFile::Open(options.file);
  if (!file.ok()) {
    KVRING_RETURN_IF_ERROR(WriteJson(
        global, {{"file", options.file}, {"error", std::string(file.status().message())}}));
    return file.status();
  }
  if (text) PrintFile(**file);
  Json json = FileJson(**file);
  const auto config = DeriveModelConfig(**file);
  if (config.ok()) {
    if (text) PrintShape(*config);
    json["shape"] = ShapeJson(*config);
    json["warnings"] = config->warnings;
  } else {
    json["error"] = std::string(config.status().message());
  }
  if (text) std::fflush(stdout);
  KVRING_RETURN_IF_ERROR(WriteJson(global, json));
  return config.status();
}

}  // namespace

CommandAction AddInspectCommand(CLI::App& app, const GlobalOptions& global) {
  auto options = std::make_shared<InspectOptions>();
  app.add_option("FILE", options->file, "model file (GGUF)")->required();
  return [options, &global] { return Inspect(*options, global); };
}

}  // namespace kvring
