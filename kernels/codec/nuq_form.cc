// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/nuq_form.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/codec/codec_util.h"
#include "kernels/codec/nf_numbers.h"

namespace kvring {
namespace {

constexpr size_t kListedIds = 12;  // a message stays readable

struct SinkFlag {
  const char* flag;
  int sinks;
};
constexpr SinkFlag kSinkFlags[] = {{"sinks0", 0}, {"sinks1", 1}, {"sinks5", 5}};

// Ids of nuq tables that are there, for messages.
std::string KnownIds(const CodecTables& tables) {
  std::set<std::string> ids;
  for (const auto& [name, table] : tables.tensors) {
    if (name.rfind("nuq", 0) == 0) ids.insert(name.substr(0, name.find('/')));
  }
  if (ids.empty()) return "none of nuq";
  std::string list;
  size_t listed = 0;
  for (const std::string& id : ids) {
    if (listed++ == kListedIds)
      return list + " and " + std::to_string(ids.size() - kListedIds) + " more";
    list += (list.empty() ? "" : ", ") + id;
  }
  return list;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t n : shape) text += (text.empty() ? "" : " x ") + std::to_string(n);
  return "[" + text + "]";
}

// Reads tensors of one table id; the first thing that is wrong stays.
class Reader {
 public:
  Reader(const CodecTables& tables, const NuqForm& form, int layers)
      : tables_(tables), id_(form.table_id), layers_(layers) {}

  bool Has(const std::string& name) const { return tables_.Find(id_ + "/" + name) != nullptr; }
  const std::string& error() const { return error_; }

  // Finite numbers [layers][columns]; layers 0: [columns].
  std::vector<float> Read(const std::string& name, int64_t columns, bool per_layer = true) {
    if (!error_.empty()) return {};
    const CodecTable* const table = tables_.Find(id_ + "/" + name);
    if (table == nullptr) return Fail(name, "is missing");
    const std::vector<int64_t> shape =
        per_layer ? std::vector<int64_t>{layers_, columns} : std::vector<int64_t>{columns};
    const int64_t count = per_layer ? layers_ * columns : columns;
    if (table->shape != shape || static_cast<int64_t>(table->values.size()) != count) {
      return Fail(
          name, "has shape " + ShapeText(table->shape) + ", this model needs " + ShapeText(shape));
    }
    if (!AllFinite(table->values.data(), count)) return Fail(name, "holds NaN or infinity");
    return table->values;
  }

  std::vector<float> ReadAscending(const std::string& name, int codes) {
    std::vector<float> values = Read(name, codes);
    for (size_t i = 1; i < values.size(); ++i) {
      if (i % codes != 0 && values[i] <= values[i - 1]) return Fail(name, "does not ascend");
    }
    return values;
  }

  std::vector<float> Fail(const std::string& name, const std::string& what) {
    if (error_.empty()) error_ = "the calibration's '" + id_ + "/" + name + "' " + what;
    return {};
  }

 private:
  const CodecTables& tables_;
  std::string id_;
  int64_t layers_;
  std::string error_;
};

// The fixed datatypes on [-1, 1], the same in every layer.
std::vector<float> FixedNumbers(const NuqForm& form, int layers) {
  std::vector<float> numbers;
  for (int layer = 0; layer < layers; ++layer) {
    for (int j = 0; j < form.codes(); ++j) {
      numbers.push_back(form.datatype == NuqDatatype::kNormal
                            ? NormalNumbers(form.bits)[j]
                            : -1.0f + 2.0f * static_cast<float>(j) / (form.codes() - 1));
    }
  }
  return numbers;
}

void LoadThresholds(const std::string& side, Reader& reader, NuqSideTables* tables) {
  tables->lo = reader.Read(side + "_lo", tables->width());
  tables->hi = reader.Read(side + "_hi", tables->width());
  if (!reader.error().empty()) return;
  for (size_t i = 0; i < tables->lo.size(); ++i) {
    if (tables->lo[i] > tables->hi[i]) {
      reader.Fail(side + "_lo", "is above " + side + "_hi");
      return;
    }
    const Normalizer normalizer = ExactNormalizer(tables->lo[i], tables->hi[i]);
    tables->z.push_back(normalizer.z);
    tables->s.push_back(normalizer.s);
  }
}

void LoadDatatype(const std::string& side, const NuqForm& form, int layers, Reader& reader,
                  NuqSideTables* tables) {
  if (form.datatype != NuqDatatype::kCalibrated) {
    tables->centroids = tables->decode = FixedNumbers(form, layers);
    return;
  }
  // Values that share a scale over all heads of a token are spread otherwise than those of one head.
  const std::string suffix = side == "v" && form.token && !tables->by_channel ? "_token" : "";
  tables->centroids = reader.ReadAscending(side + "_cent" + suffix, tables->codes);
  tables->decode = form.options.qnorm ? reader.Read(side + "_decode" + suffix, tables->codes)
                                      : tables->centroids;
}

// Slots of a page of `block` tokens, from those that the tables state for blocks of theirs.
void LoadSlots(const std::string& side, int64_t block, Reader& reader, NuqSideTables* tables) {
  const std::vector<float> stated = reader.Read(side + "_slots", tables->heads);
  const std::vector<float> stated_block = reader.Read("block_tokens", 1, false);
  if (!reader.error().empty()) return;
  const int64_t from = static_cast<int64_t>(stated_block[0]), most = block * tables->dim;
  if (from < 1) {
    reader.Fail("block_tokens", "is not positive");
    return;
  }
  for (const float slots : stated) {
    if (slots < 0.0f || slots != std::floor(slots) || slots > 65536.0f) {
      reader.Fail(side + "_slots", "holds " + std::to_string(slots) + ", no count of slots");
      return;
    }
    const int64_t scaled = (static_cast<int64_t>(slots) * block + from - 1) / from;
    tables->slots.push_back(static_cast<int>(std::min(scaled, most)));
  }
}

void LoadOutliers(const std::string& side, Reader& reader, NuqSideTables* tables) {
  const std::vector<float> means = reader.Read(side + "_outliers", tables->heads);
  for (size_t i = 0; i < means.size(); i += tables->heads) {
    double sum = 0.0;
    for (int h = 0; h < tables->heads; ++h) sum += std::max(0.0f, means[i + h]);
    tables->outliers.push_back(sum);
  }
}

void LoadSide(const std::string& side, const NuqForm& form, const KvShape& shape, Reader& reader,
              NuqSideTables* tables) {
  tables->codes = form.codes();
  tables->heads = shape.kv_heads;
  if (tables->by_channel) LoadThresholds(side, reader, tables);
  LoadDatatype(side, form, shape.layers, reader, tables);
  tables->slots.assign(form.fraction > 0 && !form.exact ? 0 : shape.layers * shape.kv_heads, 0);
  tables->outliers.assign(form.fraction > 0 && form.exact ? 0 : shape.layers, 0.0);
  if (form.fraction <= 0) return;
  if (form.exact) {
    LoadOutliers(side, reader, tables);
  } else {
    LoadSlots(side, shape.block_tokens, reader, tables);
  }
}

bool HoldsId(const CodecTables& tables, const std::string& id) {
  const auto at = tables.tensors.lower_bound(id + "/");
  return at != tables.tensors.end() && at->first.rfind(id + "/", 0) == 0;
}

}  // namespace

NuqForm ParseNuqForm(const CodecRow& row, const CodecOptions& options, std::string* error) {
  NuqForm form;
  form.bits = row.bits;
  form.fraction = row.outliers;
  form.options = ParseNuqTableOptions(options.flags);
  form.table_id = NuqTableId(row.name, form.options);
  const bool paper = HasFlag(options, "paper"), integer = HasFlag(options, "int"),
             normal = HasFlag(options, "nf");
  form.exact = paper || HasFlag(options, "exact");
  form.token = paper || HasFlag(options, "token");
  form.datatype = integer  ? NuqDatatype::kInteger
                  : normal ? NuqDatatype::kNormal
                           : NuqDatatype::kCalibrated;
  int given = 0;
  if (form.options.no_sinks) form.sinks = 0;
  for (const SinkFlag& sink : kSinkFlags) {
    if (!HasFlag(options, sink.flag)) continue;
    form.sinks = sink.sinks;
    ++given;
  }
  const std::string name = std::string("codec ") + row.name;
  if (given > 1) *error = name + ": only one of sinks0, sinks1, sinks5 can be chosen";
  if (integer && normal) *error = name + ": int and nf exclude each other";
  if ((integer || normal) && form.options.qnorm)
    *error = name + ": qnorm belongs to the calibrated datatype, not to int or nf";
  return form;
}

std::string LoadNuqTables(const CodecRow& row, const CodecOptions& options, const NuqForm& form,
                          NuqTables* tables) {
  if (options.tables == nullptr) {
    return std::string("codec ") + row.name +
           " needs calibrated tables: kvring calibrate makes them, --calibration FILE names them";
  }
  if (!HoldsId(*options.tables, form.table_id)) {
    return "the calibration has no tables of '" + form.table_id + "'; it has " +
           KnownIds(*options.tables);
  }
  Reader reader(*options.tables, form, options.shape.layers);
  tables->k.dim = options.shape.dk;
  tables->k.by_channel = !form.options.token_keys;
  tables->v.dim = options.shape.dv;
  tables->v.by_channel = form.options.channel_values;
  LoadSide("k", form, options.shape, reader, &tables->k);
  LoadSide("v", form, options.shape, reader, &tables->v);
  return reader.error();
}

}  // namespace kvring
