// SPDX-License-Identifier: Apache-2.0
// `kvring inspect FILE`: of a model the header, the tensors, the derived shape; of a calibration what it was made from and
// what its codecs take; or the one thing that is wrong.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/codec/tc_model.h"
#include "kvstore/calibration_file.h"
#include "kvstore/codec_spec.h"
#include "kvstore/sequence_shard.h"
#include "launch/command.h"
#include "launch/json_file.h"
#include "launch/result_json.h"
#include "runtime/base/hash.h"
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

// One page's outlier slots, and whose page it is.
struct SlotCount {
  int64_t slots = 0, layer = 0, head = 0;
};
struct SideSummary {
  bool has_slots = false;
  SlotCount smallest, largest;
  double outliers = 0;  // of a token over all heads, mean of the layers
};

// What the tables of one codec come to.
struct CodecSummary {
  std::string id, error;
  std::string form;  // in words, for tables without bits and slots of their own
  double bits = 0,
         paper_bits = 0;  // slots in each page (default); as published, exact and one scale a token
  SideSummary k, v;
};

SideSummary SummarizeSide(const CodecTables& tables, const std::string& prefix,
                          const KvShape& shape) {
  SideSummary side;
  const CodecTable* const slots = tables.Find(prefix + "_slots");
  for (size_t i = 0; slots != nullptr && i < slots->values.size(); ++i) {
    const SlotCount count{static_cast<int64_t>(slots->values[i]),
                          static_cast<int64_t>(i) / shape.kv_heads,
                          static_cast<int64_t>(i) % shape.kv_heads};
    if (!side.has_slots || count.slots < side.smallest.slots) side.smallest = count;
    if (!side.has_slots || count.slots > side.largest.slots) side.largest = count;
    side.has_slots = true;
  }
  const CodecTable* const outliers = tables.Find(prefix + "_outliers");
  for (size_t i = 0; outliers != nullptr && i < outliers->values.size(); ++i) {
    side.outliers += outliers->values[i] / shape.layers;
  }
  return side;
}

// tc has one set of tables for all rates, and no outliers.
CodecSummary SummarizeTc(const Calibration& calibration) {
  CodecSummary summary;
  summary.id = kTcTableId;
  const KvShape& shape = calibration.info.shape;
  summary.error = TcModel::Check(*calibration.tables, shape);
  if (!summary.error.empty()) return summary;
  const TcModel model(calibration.tables, shape);
  int keys = 0, values = 0;
  for (int i = 0; i < shape.layers * shape.kv_heads; ++i) {
    keys += model.Key(i / shape.kv_heads, i % shape.kv_heads).rotated;
    values += model.Value(i / shape.kv_heads, i % shape.kv_heads).rotated;
  }
  summary.form = absl::StrFormat(
      "tc@1 to tc@6; keys turned to positions 0..%d; of %d heads, a plain rotation for the keys of "
      "%d and the values of %d",
      model.served_context() - 1, shape.layers * shape.kv_heads, keys, values);
  return summary;
}

CodecSummary Summarize(const Calibration& calibration, const std::string& id) {
  if (id == kTcTableId) return SummarizeTc(calibration);
  const KvShape& shape = calibration.info.shape;
  // Frequencies have no part in sizes; any table of the right size does.
  const RopeTable rope =
      MakeRopeTable(RopePairing::kInterleaved, shape.dk, shape.dk / 2 * 2, 1e4, {});
  const std::vector<const RopeTable*> ropes(shape.layers, &rope);
  CodecSummary summary;
  summary.id = id;
  for (const bool paper : {false, true}) {
    const auto codec = MakeCodec(paper ? id + ":paper" : id, shape, ropes, calibration.tables);
    if (!codec.ok()) {
      summary.error = std::string(codec.status().message());
      return summary;
    }
    (paper ? summary.paper_bits : summary.bits) = BitsPerElement(**codec, shape);
  }
  summary.k = SummarizeSide(*calibration.tables, id + "/k", shape);
  summary.v = SummarizeSide(*calibration.tables, id + "/v", shape);
  return summary;
}

std::string ShowSlots(const SideSummary& side) {
  if (!side.has_slots || side.largest.slots == 0) return "none";
  const auto show = [](const SlotCount& count) {
    return absl::StrFormat("%d (layer %d, head %d)", count.slots, count.layer, count.head);
  };
  return absl::StrCat(show(side.smallest), " to ", show(side.largest));
}

void PrintOptionalInfo(const CalibrationInfo& info) {
  if (info.update) {
    std::vector<std::string> texts;
    for (const std::string& text : info.update->texts) texts.push_back(Shown(text));
    absl::PrintF(
        "tc updated: covariance from %s, %d windows of %d tokens, seed %d, hash %s; the tables "
        "before had hash %s\n",
        absl::StrJoin(texts, ", "), info.update->windows, info.update->window, info.update->seed,
        info.update->text_hash, info.update->from);
  }
  if (!info.held_out) return;
  absl::PrintF("tc on text that was left out (%d x %d tokens), KL at bits a coefficient:",
               info.held_out->windows, info.held_out->window);
  for (const HeldOutPoint& p : info.held_out->points) absl::PrintF(" %.4f at %g", p.kl, p.rate);
  absl::PrintF("\n");
}

void PrintCalibration(const Calibration& calibration, const std::string& path,
                      const std::vector<CodecSummary>& codecs) {
  const CalibrationInfo& info = calibration.info;
  const KvShape& s = info.shape;
  absl::PrintF("%s: calibration of version %d, %d tensors, hash %s\n", path, info.version,
               calibration.tables->tensors.size(), HashHex(calibration.tables->hash));
  absl::PrintF("model: %s, hash %s\n", Shown(info.model_name), info.model_hash);
  absl::PrintF(
      "shape: %d layers, %d query heads on %d KV heads, head_dim %d (keys) %d (values), blocks of "
      "%d tokens\n",
      s.layers, s.query_heads, s.kv_heads, s.dk, s.dv, s.block_tokens);
  absl::PrintF("RoPE: %s\n", info.rope);
  std::vector<std::string> texts;
  for (const std::string& text : info.texts) texts.push_back(Shown(text));
  absl::PrintF(
      "text: %s, %d windows of %d tokens, seed %d, hash %s; the first %d of each left out\n",
      absl::StrJoin(texts, ", "), info.windows, info.window, info.seed, info.text_hash, info.sinks);
  absl::PrintF("loss: %.4f nats a token; context to serve: %d tokens\n", info.loss,
               info.served_context);
  PrintOptionalInfo(info);
  for (const CodecSummary& codec : codecs) {
    const std::string& words = codec.error.empty() ? codec.form : codec.error;
    if (!words.empty()) {
      absl::PrintF("\n%s: %s\n", codec.id, words);
      continue;
    }
    absl::PrintF("\n%s: %.3f bits an element (:paper %.3f)\n", codec.id, codec.bits,
                 codec.paper_bits);
    absl::PrintF("  slots of a page: keys %s, values %s\n", ShowSlots(codec.k), ShowSlots(codec.v));
    absl::PrintF("  outliers of a token and layer: %.2f keys, %.2f values\n", codec.k.outliers,
                 codec.v.outliers);
  }
}

Json SideJson(const SideSummary& side) {
  const auto count = [](const SlotCount& c) -> Json {
    return {{"slots", c.slots}, {"layer", c.layer}, {"head", c.head}};
  };
  Json json = {{"outliers_per_token", side.outliers}};
  if (!side.has_slots) return json;
  json["smallest"] = count(side.smallest);
  json["largest"] = count(side.largest);
  return json;
}

Json CalibrationJson(const Calibration& calibration, const std::string& path,
                     const std::vector<CodecSummary>& codecs) {
  const CalibrationInfo& info = calibration.info;
  const KvShape& s = info.shape;
  Json json = {{"file", path},
               {"kind", "calibration"},
               {"version", info.version},
               {"tables_hash", HashHex(calibration.tables->hash)},
               {"model", {{"name", info.model_name}, {"hash", info.model_hash}}},
               {"shape",
                {{"layers", s.layers},
                 {"query_heads", s.query_heads},
                 {"kv_heads", s.kv_heads},
                 {"head_dim", s.dk},
                 {"value_dim", s.dv},
                 {"block_tokens", s.block_tokens}}},
               {"rope", info.rope},
               {"texts", info.texts},
               {"text_hash", info.text_hash},
               {"windows", info.windows},
               {"window", info.window},
               {"seed", info.seed},
               {"sinks", info.sinks},
               {"served_context", info.served_context},
               {"loss", info.loss},
               {"codecs", Json::array()}};
  AddOptionalInfo(info, json);
  for (const CodecSummary& codec : codecs) {
    Json one = {{"id", codec.id}};
    if (!codec.form.empty()) {
      one["form"] = codec.form;
    } else if (codec.error.empty()) {
      one["bits"] = codec.bits;
      one["bits_paper"] = codec.paper_bits;
      one["keys"] = SideJson(codec.k);
      one["values"] = SideJson(codec.v);
    } else {
      one["error"] = codec.error;
    }
    json["codecs"].push_back(one);
  }
  return json;
}

// A tensor file begins with 8 bytes of length and a JSON object; a model file with "GGUF".
bool LooksLikeTensorFile(const std::string& path) {
  char head[9] = {};
  std::ifstream file(path, std::ios::binary);
  return file.read(head, sizeof(head)) && head[8] == '{' && std::string(head, 4) != "GGUF";
}

absl::Status WriteError(const GlobalOptions& global, const std::string& path,
                        const absl::Status& status) {
  KVRING_RETURN_IF_ERROR(
      WriteJson(global, {{"file", path}, {"error", std::string(status.message())}}));
  return status;
}

absl::Status InspectCalibration(const std::string& path, const GlobalOptions& global) {
  const auto calibration = ReadCalibration(path);
  if (!calibration.ok()) return WriteError(global, path, calibration.status());
  std::vector<CodecSummary> codecs;
  for (const std::string& id : calibration->info.codecs) {
    codecs.push_back(Summarize(*calibration, id));
  }
  if (global.json != "-") PrintCalibration(*calibration, path, codecs);
  std::fflush(stdout);
  return WriteJson(global, CalibrationJson(*calibration, path, codecs));
}

absl::Status Inspect(const InspectOptions& options, const GlobalOptions& global) {
  if (LooksLikeTensorFile(options.file)) return InspectCalibration(options.file, global);
  const bool text = global.json != "-";
  const auto file = GgufFile::Open(options.file);
  if (!file.ok()) return WriteError(global, options.file, file.status());
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
  app.add_option("FILE", options->file, "model file (GGUF) or calibration file")->required();
  return [options, &global] { return Inspect(*options, global); };
}

}  // namespace kvring
