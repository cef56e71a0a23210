// SPDX-License-Identifier: Apache-2.0
#include "kvstore/calibration_file.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "kvstore/tensor_file.h"
#include "runtime/base/hash.h"

namespace kvring {
namespace {

constexpr char kFormat[] = "kvring.calibration";

// Numbers of CalibrationInfo by the names they have in the file; one list for both directions.
struct Field {
  const char* name;
  int64_t value;
};
std::vector<Field> Fields(const CalibrationInfo& info) {
  const KvShape& s = info.shape;
  return {{"windows", info.windows},
          {"window", info.window},
          {"seed", info.seed},
          {"sinks", info.sinks},
          {"served_context", info.served_context},
          {"shape.layers", s.layers},
          {"shape.query_heads", s.query_heads},
          {"shape.kv_heads", s.kv_heads},
          {"shape.key_size", s.dk},
          {"shape.value_size", s.dv},
          {"shape.block_tokens", s.block_tokens}};
}

std::string ListText(const std::vector<std::string>& list) {
  return nlohmann::json(list).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Of everything but the tables: a reader sees damage that no other check would.
std::string MetadataHash(const std::map<std::string, std::string>& metadata) {
  std::string text;
  for (const auto& [key, value] : metadata) {
    if (key != "metadata.hash") absl::StrAppend(&text, key, "=", value, "\n");
  }
  return HashHex(Hash64(text.data(), static_cast<int64_t>(text.size())));
}

// Values of the metadata by name; the first thing that is wrong is kept, with the name of its field.
class MetadataReader {
 public:
  MetadataReader(const std::map<std::string, std::string>& metadata, const std::string& path)
      : metadata_(metadata), path_(path) {}

  std::string Text(const char* key) {
    const auto found = metadata_.find(key);
    if (found != metadata_.end()) return found->second;
    Wrong(key, "is missing");
    return "";
  }
  int64_t Number(const char* key, int64_t largest) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(Text(key), &number) || number < 0 || number > largest) {
      Wrong(key, absl::StrCat("is no number from 0 to ", largest));
    }
    return number;
  }
  double Real(const char* key) {
    double number = 0.0;
    if (!absl::SimpleAtod(Text(key), &number) || !std::isfinite(number)) {
      Wrong(key, "is no finite number");
    }
    return number;
  }
  std::vector<std::string> List(const char* key) {
    std::vector<std::string> list;
    const auto json = nlohmann::json::parse(Text(key), nullptr, /*allow_exceptions=*/false);
    if (!json.is_array()) Wrong(key, "is no list");
    for (const auto& item : json) {
      if (const auto* text = item.get_ptr<const std::string*>()) {
        list.push_back(*text);
      } else {
        Wrong(key, "is no list of texts");
      }
    }
    return list;
  }
  bool Has(const char* key) const { return metadata_.contains(key); }
  // [[rate, bits, nats, kl], ..]
  std::vector<HeldOutPoint> Points(const char* key) {
    std::vector<HeldOutPoint> points;
    const auto json = nlohmann::json::parse(Text(key), nullptr, /*allow_exceptions=*/false);
    bool right = json.is_array() && !json.empty();
    for (size_t i = 0; right && i < json.size(); ++i) {
      double row[4] = {};
      right = json[i].is_array() && json[i].size() == 4;
      for (int j = 0; right && j < 4; ++j) {
        right = json[i][j].is_number();
        if (right) row[j] = json[i][j].get<double>();
      }
      right = right && (points.empty() || row[0] > points.back().rate);
      points.push_back({row[0], row[1], row[2], row[3]});
    }
    if (!right) Wrong(key, "is no list of [rate, bits, nats, kl] with rising rates");
    return points;
  }
  const absl::Status& status() const { return status_; }

 private:
  void Wrong(const char* key, const std::string& what) {
    if (status_.ok()) status_ = absl::DataLossError(absl::StrCat(path_, ": '", key, "' ", what));
  }

  const std::map<std::string, std::string>& metadata_;
  const std::string& path_;
  absl::Status status_;
};

// What a calibration may have or not: absent from the file when it has not.
void AddOptional(const CalibrationInfo& info, std::map<std::string, std::string>& metadata) {
  if (info.update) {
    const CalibrationUpdate& update = *info.update;
    metadata["update.texts"] = ListText(update.texts);
    metadata["update.text.hash"] = update.text_hash;
    metadata["update.from"] = update.from;
    metadata["update.windows"] = absl::StrCat(update.windows);
    metadata["update.window"] = absl::StrCat(update.window);
    metadata["update.seed"] = absl::StrCat(update.seed);
  }
  if (info.held_out) {
    nlohmann::json points = nlohmann::json::array();
    for (const HeldOutPoint& p : info.held_out->points)
      points.push_back({p.rate, p.bits, p.nats, p.kl});
    metadata["held_out.points"] = points.dump();
    metadata["held_out.windows"] = absl::StrCat(info.held_out->windows);
    metadata["held_out.window"] = absl::StrCat(info.held_out->window);
  }
}

std::map<std::string, std::string> Metadata(const Calibration& calibration) {
  const CalibrationInfo& info = calibration.info;
  std::map<std::string, std::string> metadata = {
      {"format", kFormat},
      {"version", absl::StrCat(info.version)},
      {"model.name", info.model_name},
      {"model.hash", info.model_hash},
      {"codecs", ListText(info.codecs)},
      {"texts", ListText(info.texts)},
      {"text.hash", info.text_hash},
      {"rope", info.rope},
      {"loss", absl::StrFormat("%.17g", info.loss)},
      {"tables.hash", HashHex(HashTables(*calibration.tables))}};
  for (const Field& field : Fields(info)) metadata[field.name] = absl::StrCat(field.value);
  AddOptional(info, metadata);
  metadata["metadata.hash"] = MetadataHash(metadata);
  return metadata;
}

absl::Status CheckKind(const std::map<std::string, std::string>& metadata,
                       const std::string& path) {
  const auto format = metadata.find("format");
  if (format == metadata.end() || format->second != kFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a calibration of kvring",
                     format == metadata.end() ? "" : absl::StrCat(" but '", format->second, "'"),
                     "; `kvring calibrate` makes one"));
  }
  const auto version = metadata.find("version");
  if (version == metadata.end() || version->second != absl::StrCat(kCalibrationVersion)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": calibration of version ",
                     version == metadata.end() ? "'none'" : absl::StrCat("'", version->second, "'"),
                     ", this program reads ", kCalibrationVersion, "; calibrate the model again"));
  }
  const auto hash = metadata.find("metadata.hash");
  if (hash == metadata.end() || hash->second != MetadataHash(metadata)) {
    return absl::DataLossError(absl::StrCat(path, ": 'metadata.hash' does not hold"));
  }
  return absl::OkStatus();
}

void ReadOptional(MetadataReader& reader, CalibrationInfo& info) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  if (reader.Has("update.texts")) {
    CalibrationUpdate update;
    update.texts = reader.List("update.texts");
    update.text_hash = reader.Text("update.text.hash");
    update.from = reader.Text("update.from");
    update.windows = reader.Number("update.windows", kAny);
    update.window = reader.Number("update.window", kAny);
    update.seed = reader.Number("update.seed", kAny);
    info.update = std::move(update);
  }
  if (reader.Has("held_out.points")) {
    info.held_out =
        HeldOut{reader.Number("held_out.windows", kAny), reader.Number("held_out.window", kAny),
                reader.Points("held_out.points")};
  }
}

absl::StatusOr<CalibrationInfo> ReadInfo(const std::map<std::string, std::string>& metadata,
                                         const std::string& path) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  constexpr int kSize = 1 << 20;  // of anything in a shape
  MetadataReader reader(metadata, path);
  const auto size = [&](const char* key) { return static_cast<int>(reader.Number(key, kSize)); };
  CalibrationInfo info;
  info.model_name = reader.Text("model.name");
  info.model_hash = reader.Text("model.hash");
  info.codecs = reader.List("codecs");
  info.texts = reader.List("texts");
  info.text_hash = reader.Text("text.hash");
  info.rope = reader.Text("rope");
  info.loss = reader.Real("loss");
  info.windows = reader.Number("windows", kAny);
  info.window = reader.Number("window", kAny);
  info.seed = reader.Number("seed", kAny);
  info.sinks = reader.Number("sinks", kAny);
  info.served_context = reader.Number("served_context", kAny);
  info.shape = {.layers = size("shape.layers"),
                .query_heads = size("shape.query_heads"),
                .kv_heads = size("shape.kv_heads"),
                .dk = size("shape.key_size"),
                .dv = size("shape.value_size"),
                .block_tokens = size("shape.block_tokens")};
  ReadOptional(reader, info);
  KVRING_RETURN_IF_ERROR(reader.status());
  return info;
}

absl::Status CheckFinite(const CodecTables& tables, const std::string& path) {
  for (const auto& [name, table] : tables.tensors) {
    for (const float value : table.values) {
      if (std::isfinite(value)) continue;
      return absl::DataLossError(absl::StrCat(path, ": tensor '", name, "' holds ", value));
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status Same(const std::string& path, const char* what, const T& theirs, const T& ours) {
  if (theirs == ours) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path, " was calibrated with another ", what,
                                                    ": ", theirs, ", this model has ", ours,
                                                    "; run `kvring calibrate` on this model"));
}

}  // namespace

HeldOutPoint HeldOutAt(const HeldOut& held_out, double rate) {
  const std::vector<HeldOutPoint>& points = held_out.points;
  if (rate <= points.front().rate) return points.front();
  if (rate >= points.back().rate) return points.back();
  const auto above = std::find_if(points.begin(), points.end(),
                                  [&](const HeldOutPoint& p) { return p.rate >= rate; });
  if (above->rate == rate) return *above;
  const HeldOutPoint &a = *(above - 1), &b = *above;
  const double part = (rate - a.rate) / (b.rate - a.rate);
  const auto between = [&](double x, double y) { return x + part * (y - x); };
  HeldOutPoint at;
  at.rate = rate;
  at.bits = between(a.bits, b.bits);
  // A codec that lost nothing measurable at one end leaves no logarithm.
  if (a.kl > 0.0 && b.kl > 0.0) {
    at.kl = std::exp(between(std::log(a.kl), std::log(b.kl)));
    at.nats = at.kl * between(a.nats / a.kl, b.nats / b.kl);
  } else {
    at.kl = between(a.kl, b.kl);
    at.nats = between(a.nats, b.nats);
  }
  return at;
}

uint64_t HashTables(const CodecTables& tables) {
  HashStream hash;
  const auto number = [&](uint64_t n) { hash.Update(&n, sizeof(n)); };
  for (const auto& [name, table] : tables.tensors) {
    number(name.size());
    hash.Update(name.data(), static_cast<int64_t>(name.size()));
    number(table.shape.size());
    for (const int64_t size : table.shape) number(static_cast<uint64_t>(size));
    hash.Update(table.values.data(), static_cast<int64_t>(table.values.size() * sizeof(float)));
  }
  return hash.Digest();
}

absl::Status WriteCalibration(const Calibration& calibration, const std::string& path) {
  if (!calibration.tables) return absl::InvalidArgumentError("a calibration without tables");
  KVRING_RETURN_IF_ERROR(CheckFinite(*calibration.tables, path));
  TensorFile file;
  file.tensors = calibration.tables->tensors;
  file.metadata = Metadata(calibration);
  return WriteTensorFile(file, path);
}

absl::StatusOr<Calibration> ReadCalibration(const std::string& path) {
  KVRING_ASSIGN_OR_RETURN(TensorFile file, ReadTensorFile(path));
  KVRING_RETURN_IF_ERROR(CheckKind(file.metadata, path));
  Calibration calibration;
  KVRING_ASSIGN_OR_RETURN(calibration.info, ReadInfo(file.metadata, path));
  auto tables = std::make_shared<CodecTables>();
  tables->tensors = std::move(file.tensors);
  tables->hash = HashTables(*tables);
  if (file.metadata["tables.hash"] != HashHex(tables->hash)) {
    return absl::DataLossError(absl::StrCat(path, ": 'tables.hash' says ",
                                            file.metadata["tables.hash"], ", the tables have ",
                                            HashHex(tables->hash)));
  }
  KVRING_RETURN_IF_ERROR(CheckFinite(*tables, path));
  calibration.tables = std::move(tables);
  return calibration;
}

absl::Status CheckCalibration(const Calibration& calibration, const std::string& path,
                              const std::string& model_hash, const KvShape& shape,
                              const std::vector<const RopeTable*>& rope) {
  const CalibrationInfo& info = calibration.info;
  CalibrationInfo here;
  here.shape = shape;
  const std::vector<Field> theirs = Fields(info), ours = Fields(here);
  for (size_t i = 0; i < theirs.size(); ++i) {
    const std::string name = theirs[i].name;
    if (name.rfind("shape.", 0) != 0) continue;
    KVRING_RETURN_IF_ERROR(Same(path, name.c_str(), theirs[i].value, ours[i].value));
  }
  KVRING_RETURN_IF_ERROR(Same(path, "RoPE", info.rope, DescribeRope(rope)));
  if (info.model_hash == model_hash) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path, " was calibrated on another model: \"", info.model_name, "\", hash ", info.model_hash,
      "; this model's hash is ", model_hash, "; run `kvring calibrate` on this model"));
}

std::string DescribeRope(const std::vector<const RopeTable*>& rope) {
  if (rope.empty()) return "none";
  HashStream hash;
  for (const RopeTable* table : rope) {
    const int32_t form[] = {static_cast<int32_t>(table->pairing), table->head_dim, table->planes()};
    hash.Update(form, sizeof(form));
    hash.Update(&table->attention_scale, sizeof(table->attention_scale));
    hash.Update(table->inv_freq.data(),
                static_cast<int64_t>(table->inv_freq.size() * sizeof(double)));
  }
  const RopeTable& first = *rope[0];
  const std::string frequencies =
      first.inv_freq.empty()
          ? "none"
          : absl::StrFormat("%.3g .. %.3g", first.inv_freq.front(), first.inv_freq.back());
  return absl::StrCat(first.pairing == RopePairing::kInterleaved ? "interleaved, " : "half-split, ",
                      first.planes(), " planes, frequencies ", frequencies, ", hash ",
                      HashHex(hash.Digest()));
}

}  // namespace kvring
