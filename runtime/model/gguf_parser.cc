// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/gguf_parser.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "runtime/model/gguf_cursor.h"

namespace kvring {
namespace {

using Limits = GgufLimits;

constexpr size_t kShownNameBytes = 80;               // of a name in a message
constexpr uint64_t kMinValueRecord = 8 + 1 + 4 + 1;  // key length, key, type, value
constexpr uint64_t kMinTensorRecord =
    8 + 1 + 4 + 8 + 4 + 8;  // name length, name, dims, one dim, type, offset

// Bytes that one value of a type takes at least; 0 for ids that do not exist.
uint64_t MinBytes(uint32_t type) {
  switch (static_cast<GgufType>(type)) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
    case GgufType::kString:
      return 8;
    case GgufType::kArray:
      return 12;
  }
  return 0;
}

class Parser {
 public:
  explicit Parser(std::span<const uint8_t> bytes) : bytes_(bytes), cursor_(bytes) {}

  absl::Status Run() {
    KVRING_RETURN_IF_ERROR(ReadPreamble());
    KVRING_RETURN_IF_ERROR(ReadMetadata());
    KVRING_RETURN_IF_ERROR(ReadTensorRecords());
    return PlaceTensors();
  }
  GgufHeader& header() { return header_; }

 private:
  absl::Status ReadPreamble();
  absl::Status CheckVersion() const;
  absl::Status CheckCount(const char* field, uint64_t count, uint64_t record, uint64_t limit) const;
  absl::Status ReadMetadata();
  absl::Status ReadValueOf(const std::string& key, GgufValue* value);
  template <typename T>
  absl::Status ReadNumber(GgufValue* value);
  absl::Status ReadBool(GgufValue* value);
  absl::Status ReadScalar(uint32_t type, GgufValue* value);
  absl::Status ReadArray(GgufValue* value);
  absl::Status TakeAlignment(const GgufValue& value);
  absl::Status ReadTensorRecords();
  absl::Status ReadTensorRecord(GgufTensor* tensor);
  absl::Status ReadDims(GgufTensor* tensor);
  absl::Status ReadFormat(GgufTensor* tensor);
  absl::Status CheckInside(const GgufTensor& tensor, uint64_t expected_bytes) const;
  absl::Status PlaceTensors();
  absl::Status CheckOverlap(const std::vector<const GgufTensor*>& by_offset) const;

  std::span<const uint8_t> bytes_;
  GgufCursor cursor_;
  GgufHeader header_;
  uint64_t num_values_ = 0, num_tensors_ = 0;
  uint64_t array_elements_ = 0;  // of all arrays so far
};

absl::Status Parser::CheckVersion() const {
  const uint32_t version = header_.version;
  if (version == 2 || version == 3) return absl::OkStatus();
  if (version == 0x02000000 || version == 0x03000000) {
    return absl::UnimplementedError(
        "version says that the file is big-endian; little-endian files are supported");
  }
  return absl::UnimplementedError(
      absl::StrCat("version is ", version, "; versions 2 and 3 are supported"));
}

absl::Status Parser::CheckCount(const char* field, uint64_t count, uint64_t record,
                                uint64_t limit) const {
  if (count > limit)
    return absl::InvalidArgumentError(absl::StrCat(field, " is ", count, "; the limit is ", limit));
  const uint64_t room = cursor_.left() / record;
  if (count <= room) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", count, ", but the file's ",
                                                 bytes_.size(), " bytes have room for at most ",
                                                 room, ": truncated, or the number is wrong"));
}

absl::Status Parser::ReadPreamble() {
  if (bytes_.empty())
    return absl::InvalidArgumentError(
        "the file is empty (0 bytes); a GGUF header takes at least 24");
  uint32_t magic = 0;
  KVRING_RETURN_IF_ERROR(cursor_.Read("magic", &magic));
  if (magic != Limits::kMagic)
    return absl::InvalidArgumentError("magic is not \"GGUF\": this is no GGUF file");
  KVRING_RETURN_IF_ERROR(cursor_.Read("version", &header_.version));
  KVRING_RETURN_IF_ERROR(CheckVersion());
  KVRING_RETURN_IF_ERROR(cursor_.Read("tensor count", &num_tensors_));
  KVRING_RETURN_IF_ERROR(cursor_.Read("key count", &num_values_));
  KVRING_RETURN_IF_ERROR(CheckCount("key count", num_values_, kMinValueRecord, Limits::kMaxKeys));
  return CheckCount("tensor count", num_tensors_, kMinTensorRecord, Limits::kMaxTensors);
}

template <typename T>
absl::Status Parser::ReadNumber(GgufValue* value) {
  T number{};
  KVRING_RETURN_IF_ERROR(cursor_.Read("value", &number));
  *value = number;
  return absl::OkStatus();
}

absl::Status Parser::ReadBool(GgufValue* value) {
  uint8_t byte = 0;
  KVRING_RETURN_IF_ERROR(cursor_.Read("value", &byte));
  if (byte > 1)
    return absl::InvalidArgumentError(
        absl::StrCat("value is a bool of ", byte, "; 0 and 1 are allowed"));
  *value = byte == 1;
  return absl::OkStatus();
}

absl::Status Parser::ReadScalar(uint32_t type, GgufValue* value) {
  switch (static_cast<GgufType>(type)) {
    case GgufType::kUint8:
      return ReadNumber<uint8_t>(value);
    case GgufType::kInt8:
      return ReadNumber<int8_t>(value);
    case GgufType::kUint16:
      return ReadNumber<uint16_t>(value);
    case GgufType::kInt16:
      return ReadNumber<int16_t>(value);
    case GgufType::kUint32:
      return ReadNumber<uint32_t>(value);
    case GgufType::kInt32:
      return ReadNumber<int32_t>(value);
    case GgufType::kUint64:
      return ReadNumber<uint64_t>(value);
    case GgufType::kInt64:
      return ReadNumber<int64_t>(value);
    case GgufType::kFloat32:
      return ReadNumber<float>(value);
    case GgufType::kFloat64:
      return ReadNumber<double>(value);
    case GgufType::kBool:
      return ReadBool(value);
    case GgufType::kString: {
      std::string text;
      KVRING_RETURN_IF_ERROR(cursor_.ReadString("string", bytes_.size(), &text));
      *value = std::move(text);
      return absl::OkStatus();
    }
    case GgufType::kArray:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("value type is ", type, "; 0 to 12 exist, arrays of arrays are refused"));
}

absl::Status Parser::ReadArray(GgufValue* value) {
  auto array = std::make_shared<GgufArray>();
  uint64_t length = 0;
  KVRING_RETURN_IF_ERROR(cursor_.Read("array element type", &array->element_type));
  KVRING_RETURN_IF_ERROR(cursor_.Read("array length", &length));
  const uint64_t least = MinBytes(array->element_type);
  if (least == 0 || array->element_type == static_cast<uint32_t>(GgufType::kArray)) {
    return absl::InvalidArgumentError(
        absl::StrCat("array element type is ", array->element_type,
                     "; 0 to 12 exist, arrays of arrays are refused"));
  }
  if (length > cursor_.left() / least) {
    return absl::InvalidArgumentError(
        absl::StrCat("array length is ", length, ", but the ", cursor_.left(),
                     " bytes left of the file have room for at most ", cursor_.left() / least,
                     ": truncated, or the number is wrong"));
  }
  if (length > Limits::kMaxArrayElements - array_elements_) {
    return absl::InvalidArgumentError(absl::StrCat("array length is ", length, "; the limit is ",
                                                   Limits::kMaxArrayElements,
                                                   " for all arrays of a file together"));
  }
  array_elements_ += length;
  array->values.resize(length);
  for (GgufValue& element : array->values)
    KVRING_RETURN_IF_ERROR(ReadScalar(array->element_type, &element));
  *value = std::move(array);
  return absl::OkStatus();
}

absl::Status Parser::ReadValueOf(const std::string& key, GgufValue* value) {
  uint32_t type = 0;
  absl::Status status = cursor_.Read("value type", &type);
  if (status.ok())
    status = type == static_cast<uint32_t>(GgufType::kArray) ? ReadArray(value)
                                                             : ReadScalar(type, value);
  return Annotate(status, absl::StrCat("key ", Quoted(key)));
}

absl::Status Parser::TakeAlignment(const GgufValue& value) {
  const uint32_t* alignment = std::get_if<uint32_t>(&value);
  if (alignment == nullptr)
    return absl::InvalidArgumentError("key general.alignment is not a 32-bit unsigned number");
  if (!std::has_single_bit(*alignment) || *alignment < Limits::kMinAlignment ||
      *alignment > Limits::kMaxAlignment) {
    return absl::InvalidArgumentError(absl::StrCat("key general.alignment is ", *alignment,
                                                   "; a power of two from ", Limits::kMinAlignment,
                                                   " to ", Limits::kMaxAlignment, " is allowed"));
  }
  header_.alignment = *alignment;
  return absl::OkStatus();
}

absl::Status Parser::ReadMetadata() {
  std::unordered_set<std::string> seen;
  for (uint64_t i = 0; i < num_values_; ++i) {
    std::string key;
    KVRING_RETURN_IF_ERROR(Annotate(cursor_.ReadString("name", Limits::kMaxKeyBytes, &key),
                                    absl::StrCat("key ", i, " of ", num_values_)));
    if (key.empty())
      return absl::InvalidArgumentError(absl::StrCat("key ", i, " of ", num_values_, " is empty"));
    if (!seen.insert(key).second)
      return absl::InvalidArgumentError(absl::StrCat("key ", Quoted(key), " is repeated"));
    GgufValue value;
    KVRING_RETURN_IF_ERROR(ReadValueOf(key, &value));
    if (key == "general.alignment") KVRING_RETURN_IF_ERROR(TakeAlignment(value));
    header_.metadata.emplace_back(std::move(key), std::move(value));
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadDims(GgufTensor* tensor) {
  uint32_t count = 0;
  KVRING_RETURN_IF_ERROR(cursor_.Read("dimension count", &count));
  if (count < 1 || count > Limits::kMaxDims) {
    return absl::InvalidArgumentError(
        absl::StrCat("dimension count is ", count, "; 1 to ", Limits::kMaxDims, " are allowed"));
  }
  // Elements stay below 2^60, so that times 4 bytes an element they still fit in 63 bits.
  constexpr uint64_t kMaxElements = uint64_t{1} << 60;
  uint64_t elements = 1;
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t dim = 0;
    KVRING_RETURN_IF_ERROR(cursor_.Read("dimension", &dim));
    if (dim < 1 || dim > Limits::kMaxDim) {
      return absl::InvalidArgumentError(
          absl::StrCat("dimension ", i, " is ", dim, "; 1 to ", Limits::kMaxDim, " are allowed"));
    }
    if (dim > kMaxElements / elements) {
      return absl::InvalidArgumentError(
          absl::StrCat("the product of the dimensions exceeds ", kMaxElements));
    }
    elements *= dim;
    tensor->dims.push_back(static_cast<int64_t>(dim));
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadFormat(GgufTensor* tensor) {
  uint32_t type = 0;
  KVRING_RETURN_IF_ERROR(cursor_.Read("tensor type", &type));
  tensor->format = FindWeightFormat(type);
  if (tensor->format == nullptr) {
    std::vector<std::string> known;
    for (const WeightFormat& format : AllWeightFormats()) known.push_back(format.name);
    return absl::UnimplementedError(absl::StrCat(
        "tensor type ", type, " is not supported; supported are ", absl::StrJoin(known, " ")));
  }
  if (tensor->row() % tensor->format->block_elements != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dimension 0 is ", tensor->row(), ", not a multiple of the ",
        tensor->format->block_elements, " numbers in a block of ", tensor->format->name));
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadTensorRecord(GgufTensor* tensor) {
  KVRING_RETURN_IF_ERROR(ReadDims(tensor));
  KVRING_RETURN_IF_ERROR(ReadFormat(tensor));
  KVRING_RETURN_IF_ERROR(cursor_.Read("offset", &tensor->offset));
  if (tensor->offset % header_.alignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "offset is ", tensor->offset, ", not a multiple of the alignment ", header_.alignment));
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadTensorRecords() {
  std::unordered_set<std::string> seen;
  for (uint64_t i = 0; i < num_tensors_; ++i) {
    GgufTensor tensor;
    const std::string which = absl::StrCat("tensor ", i, " of ", num_tensors_);
    KVRING_RETURN_IF_ERROR(
        Annotate(cursor_.ReadString("name", Limits::kMaxKeyBytes, &tensor.name), which));
    if (tensor.name.empty())
      return absl::InvalidArgumentError(absl::StrCat(which, " has an empty name"));
    if (!seen.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quoted(tensor.name), " is repeated"));
    }
    KVRING_RETURN_IF_ERROR(
        Annotate(ReadTensorRecord(&tensor), absl::StrCat("tensor ", Quoted(tensor.name))));
    header_.tensors.push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

// Where a tensor ends, from the start of the file, saturating. Its size fits: elements are below 2^60, 4 bytes at most.
uint64_t EndOf(const GgufTensor& tensor) {
  const uint64_t size =
      static_cast<uint64_t>(tensor.row_bytes()) * static_cast<uint64_t>(tensor.rows());
  return tensor.offset > UINT64_MAX - size ? UINT64_MAX : tensor.offset + size;
}

absl::Status Parser::CheckInside(const GgufTensor& tensor, uint64_t expected_bytes) const {
  const uint64_t end = EndOf(tensor);
  if (end <= bytes_.size()) return absl::OkStatus();
  const uint64_t present = tensor.offset < bytes_.size() ? bytes_.size() - tensor.offset : 0;
  return absl::DataLossError(absl::StrCat(
      "tensor ", Quoted(tensor.name), " needs ", end - tensor.offset, " bytes at offset ",
      tensor.offset, ", ", present, " are there; the file has ", bytes_.size(), " bytes, ",
      expected_bytes, " are expected: truncated, or an offset or dimension is wrong"));
}

absl::Status Parser::CheckOverlap(const std::vector<const GgufTensor*>& by_offset) const {
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const GgufTensor& a = *by_offset[i - 1];
    const GgufTensor& b = *by_offset[i];
    if (a.offset + a.data.size() > b.offset) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensors ", Quoted(a.name), " and ", Quoted(b.name), " overlap at offset ", b.offset));
    }
  }
  return absl::OkStatus();
}

absl::Status Parser::PlaceTensors() {
  if (header_.tensors.empty()) return absl::OkStatus();
  const uint64_t data_begin =
      (cursor_.position() + header_.alignment - 1) & ~(header_.alignment - 1);
  std::vector<GgufTensor*> by_offset;
  for (GgufTensor& tensor : header_.tensors) {
    if (tensor.offset > UINT64_MAX - data_begin) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensor.name), ": offset ",
                                                     tensor.offset, " lies beyond the file's ",
                                                     bytes_.size(), " bytes"));
    }
    tensor.offset += data_begin;
    by_offset.push_back(&tensor);
  }
  std::stable_sort(by_offset.begin(), by_offset.end(),
                   [](const GgufTensor* a, const GgufTensor* b) { return a->offset < b->offset; });
  uint64_t expected_bytes = 0;
  for (const GgufTensor* tensor : by_offset)
    expected_bytes = std::max(expected_bytes, EndOf(*tensor));
  for (GgufTensor* tensor : by_offset) {
    KVRING_RETURN_IF_ERROR(CheckInside(*tensor, expected_bytes));
    tensor->data = bytes_.subspan(tensor->offset, EndOf(*tensor) - tensor->offset);
  }
  KVRING_RETURN_IF_ERROR(CheckOverlap({by_offset.begin(), by_offset.end()}));
  const uint64_t end = by_offset.back()->offset + by_offset.back()->data.size();
  const uint64_t padded = (end + header_.alignment - 1) & ~(header_.alignment - 1);
  if (bytes_.size() > padded) {
    header_.warnings.push_back(
        absl::StrCat(bytes_.size() - padded, " bytes after the last tensor are ignored"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Quoted(const std::string& name) {
  const bool cut = name.size() > kShownNameBytes;
  return absl::StrCat("'", absl::CHexEscape(name.substr(0, kShownNameBytes)), cut ? "...'" : "'");
}

absl::StatusOr<GgufHeader> ParseGguf(std::span<const uint8_t> bytes, const std::string& name) {
  Parser parser(bytes);
  KVRING_RETURN_IF_ERROR(Annotate(parser.Run(), name));
  return std::move(parser.header());
}

}  // namespace kvring
