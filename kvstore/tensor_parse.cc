// SPDX-License-Identifier: Apache-2.0
// Bytes of a safetensors file to tensors. The header is read event by event, so that depth and size of what it says never
// become ours: anything but the three kinds of objects the format has ends the reading.
#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "kvstore/tensor_file.h"

namespace kvring {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian, memory too");

// Some 10,000 tensors. What a header can make us hold grows with its bytes, some 15 times as fast (empty texts).
constexpr uint64_t kLargestHeader = 1 << 20;
constexpr size_t kMostDimensions = 8;
constexpr uint64_t kLargestSize = uint64_t{1} << 62;  // of a dimension: positive as int64_t

// As the header gives it.
struct Entry {
  std::string name, dtype;
  std::vector<uint64_t> shape, offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

std::string Shown(const std::string& name) {
  const bool cut = name.size() > 60;
  return absl::StrCat("'", absl::Utf8SafeCEscape(name.substr(0, 60)), cut ? "...'" : "'");
}

// Takes the events of nlohmann's reader. A callback that returns false ends the reading; error() says why.
class HeaderReader {
 public:
  using Json = nlohmann::json;

  const std::string& error() const { return error_; }
  std::vector<Entry>& entries() { return entries_; }
  std::map<std::string, std::string>& metadata() { return metadata_; }

  bool null() { return Unexpected("null"); }
  bool boolean(bool) { return Unexpected("a truth value"); }
  bool number_integer(Json::number_integer_t) { return Unexpected("a negative number"); }
  bool number_float(Json::number_float_t, const Json::string_t&) {
    return Unexpected("a number that is no count");
  }
  bool binary(Json::binary_t&) { return Unexpected("binary data"); }

  bool number_unsigned(Json::number_unsigned_t number) {
    if (at_ == Place::kShape && entries_.back().shape.size() == kMostDimensions) {
      return Fail(absl::StrCat(Where(), " has more than ", kMostDimensions, " dimensions"));
    }
    if (at_ == Place::kShape) return entries_.back().shape.push_back(number), true;
    if (at_ == Place::kOffsets && entries_.back().offsets.size() < 2) {
      return entries_.back().offsets.push_back(number), true;
    }
    return Unexpected("a number");
  }

  bool string(Json::string_t& text) {
    if (at_ == Place::kMetadata) return metadata_[key_] = text, true;
    if (at_ != Place::kTensor || key_ != "dtype") return Unexpected("a text");
    entries_.back().dtype = text;
    return true;
  }

  bool start_object(size_t) {
    if (at_ == Place::kOutside) return at_ = Place::kRoot, true;
    if (at_ != Place::kRoot) return Unexpected("an object");
    if (key_ == "__metadata__") return at_ = Place::kMetadata, true;
    at_ = Place::kTensor;
    entries_.push_back({});
    entries_.back().name = key_;
    return true;
  }

  bool end_object() {
    if (at_ == Place::kTensor && !Complete(entries_.back())) {
      return Fail(absl::StrCat("tensor ", Shown(entries_.back().name),
                               " has not dtype, shape and two data_offsets"));
    }
    at_ = at_ == Place::kRoot ? Place::kOutside : Place::kRoot;
    return true;
  }

  bool start_array(size_t) {
    if (at_ != Place::kTensor || key_ == "dtype") return Unexpected("a list");
    at_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    return true;
  }

  bool end_array() { return at_ = Place::kTensor, true; }

  bool key(Json::string_t& name) {
    key_ = name;
    if (at_ == Place::kRoot) {
      return names_.insert(name).second || Fail(absl::StrCat(Shown(name), " twice"));
    }
    if (at_ == Place::kMetadata) {
      return metadata_.count(name) == 0 || Fail(absl::StrCat(Where(), " twice"));
    }
    Entry& entry = entries_.back();
    bool* const seen = name == "dtype"          ? &entry.has_dtype
                       : name == "shape"        ? &entry.has_shape
                       : name == "data_offsets" ? &entry.has_offsets
                                                : nullptr;
    if (seen == nullptr) return Fail(absl::StrCat(Where(), " is no field of a tensor"));
    return !std::exchange(*seen, true) || Fail(absl::StrCat(Where(), " twice"));
  }

  bool parse_error(size_t at, const std::string&, const Json::exception&) {
    return Fail(absl::StrCat("not JSON at byte ", at, " of the header"));
  }

 private:
  enum class Place { kOutside, kRoot, kMetadata, kTensor, kShape, kOffsets };

  static bool Complete(const Entry& entry) {
    return entry.has_dtype && entry.has_shape && entry.has_offsets && entry.offsets.size() == 2;
  }
  std::string Where() const {
    switch (at_) {
      case Place::kOutside:
        return "the header";
      case Place::kRoot:
        return Shown(key_);
      case Place::kMetadata:
        return absl::StrCat("__metadata__, ", Shown(key_));
      default:
        return absl::StrCat("tensor ", Shown(entries_.back().name), ", ", Shown(key_));
    }
  }
  bool Unexpected(const char* what) {
    return Fail(absl::StrCat(Where(), ": ", what, " where none may be"));
  }
  bool Fail(const std::string& what) {
    error_ = what;
    return false;
  }

  Place at_ = Place::kOutside;
  std::string key_, error_;
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
  std::set<std::string> names_;
};

absl::Status Damaged(const std::string& name, const std::string& what) {
  return absl::DataLossError(absl::StrCat(name, ": ", what));
}

absl::Status CheckEntry(const Entry& entry, uint64_t data_bytes, const std::string& name) {
  const std::string tensor = absl::StrCat("tensor ", Shown(entry.name));
  if (entry.dtype != "F32") {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": ", tensor, " has dtype ", Shown(entry.dtype), "; only 'F32' is read here"));
  }
  const uint64_t begin = entry.offsets[0], end = entry.offsets[1];
  if (begin > end || end > data_bytes) {
    return Damaged(name, absl::StrCat(tensor, ": data_offsets ", begin, " to ", end, " in ",
                                      data_bytes, " bytes of data"));
  }
  uint64_t elements = 1;
  for (const uint64_t size : entry.shape) {
    if (size > kLargestSize || (size != 0 && elements > data_bytes / size)) {
      return Damaged(name, absl::StrCat(tensor, ": its shape is larger than the file"));
    }
    elements *= size;
  }
  if (elements > data_bytes / sizeof(float) || elements * sizeof(float) != end - begin) {
    return Damaged(name, absl::StrCat(tensor, ": shape of ", elements,
                                      " elements, data_offsets of ", end - begin, " bytes"));
  }
  return absl::OkStatus();
}

// Tensors lie one behind the other and fill the data: nothing overlaps and nothing is hidden.
absl::Status CheckTiling(std::vector<Entry>& entries, uint64_t data_bytes,
                         const std::string& name) {
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.offsets < b.offsets; });
  uint64_t expected = 0;
  for (const Entry& entry : entries) {
    if (entry.offsets[0] != expected) {
      return Damaged(name, absl::StrCat("tensor ", Shown(entry.name), ": data_offsets begin at ",
                                        entry.offsets[0], ", the data before ends at ", expected));
    }
    expected = entry.offsets[1];
  }
  if (expected == data_bytes) return absl::OkStatus();
  return Damaged(name, absl::StrCat(data_bytes, " bytes of data, tensors have ", expected));
}

absl::StatusOr<uint64_t> HeaderBytes(const std::string& bytes, const std::string& name) {
  uint64_t header = 0;
  if (bytes.size() < sizeof(header)) {
    return Damaged(name, absl::StrCat(bytes.size(), " bytes, the header's length alone has 8"));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header > bytes.size() - sizeof(header)) {
    return Damaged(
        name, absl::StrCat("header length ", header, " in a file of ", bytes.size(), " bytes"));
  }
  if (header > kLargestHeader) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": header length ", header, "; at most ",
                                                   kLargestHeader, " is read here"));
  }
  return header;
}

}  // namespace

absl::StatusOr<TensorFile> ParseTensorFile(const std::string& bytes, const std::string& name) {
  KVRING_ASSIGN_OR_RETURN(const uint64_t header_bytes, HeaderBytes(bytes, name));
  const auto header = bytes.begin() + sizeof(header_bytes);
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(header, header + header_bytes, &reader)) {
    return Damaged(name, reader.error());
  }
  const uint64_t data_begin = sizeof(header_bytes) + header_bytes;
  const uint64_t data_bytes = bytes.size() - data_begin;
  for (const Entry& entry : reader.entries()) {
    KVRING_RETURN_IF_ERROR(CheckEntry(entry, data_bytes, name));
  }
  KVRING_RETURN_IF_ERROR(CheckTiling(reader.entries(), data_bytes, name));
  TensorFile file;
  file.metadata = std::move(reader.metadata());
  for (const Entry& entry : reader.entries()) {
    CodecTable& table = file.tensors[entry.name];
    table.shape.assign(entry.shape.begin(), entry.shape.end());
    table.values.resize((entry.offsets[1] - entry.offsets[0]) / sizeof(float));
    if (table.values.empty()) continue;  // memcpy takes no null, not even for nothing
    std::memcpy(table.values.data(), bytes.data() + data_begin + entry.offsets[0],
                table.values.size() * sizeof(float));
  }
  return file;
}

}  // namespace kvring
