// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/gguf_writer.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <type_traits>

#include "runtime/model/gguf_parser.h"

namespace kvring {
namespace {

constexpr uint32_t kVersion = 3;

template <typename T>
void Append(std::string& out, T number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof(T));
}

void AppendString(std::string& out, const std::string& text) {
  Append<uint64_t>(out, text.size());
  out += text;
}

template <typename T>
constexpr GgufType TypeOf() {
  if constexpr (std::is_same_v<T, uint8_t>) return GgufType::kUint8;
  if constexpr (std::is_same_v<T, int8_t>) return GgufType::kInt8;
  if constexpr (std::is_same_v<T, uint16_t>) return GgufType::kUint16;
  if constexpr (std::is_same_v<T, int16_t>) return GgufType::kInt16;
  if constexpr (std::is_same_v<T, uint32_t>) return GgufType::kUint32;
  if constexpr (std::is_same_v<T, int32_t>) return GgufType::kInt32;
  if constexpr (std::is_same_v<T, uint64_t>) return GgufType::kUint64;
  if constexpr (std::is_same_v<T, int64_t>) return GgufType::kInt64;
  if constexpr (std::is_same_v<T, float>) return GgufType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return GgufType::kFloat64;
  if constexpr (std::is_same_v<T, bool>) return GgufType::kBool;
  if constexpr (std::is_same_v<T, std::string>) return GgufType::kString;
  return GgufType::kArray;
}

// The value without its type.
void AppendPayload(std::string& out, const GgufValue& value) {
  std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          AppendString(out, v);
        } else if constexpr (std::is_same_v<T, bool>) {
          Append<uint8_t>(out, v ? 1 : 0);
        } else if constexpr (std::is_arithmetic_v<T>) {
          Append(out, v);
        } else {
          Append(out, v->element_type);
          Append<uint64_t>(out, v->values.size());
          for (const GgufValue& element : v->values) AppendPayload(out, element);
        }
      },
      value);
}

void AppendRecord(std::string& out, const std::string& key, const GgufValue& value) {
  AppendString(out, key);
  std::visit(
      [&](const auto& v) {
        Append(out, static_cast<uint32_t>(TypeOf<std::decay_t<decltype(v)>>()));
      },
      value);
  AppendPayload(out, value);
}

template <typename T>
GgufValue ArrayOf(const std::vector<T>& values) {
  auto array = std::make_shared<GgufArray>();
  array->element_type = static_cast<uint32_t>(TypeOf<T>());
  array->values.assign(values.begin(), values.end());
  return array;
}

void Pad(std::string& out, uint32_t alignment) {
  out.resize((out.size() + alignment - 1) / alignment * alignment);
}

}  // namespace

GgufWriter::GgufWriter(uint32_t alignment) : alignment_(alignment) {
  if (alignment != GgufLimits::kDefaultAlignment) Set("general.alignment", alignment);
}

void GgufWriter::Set(const std::string& key, GgufValue value) {
  metadata_.emplace_back(key, std::move(value));
}

void GgufWriter::SetStrings(const std::string& key, const std::vector<std::string>& values) {
  Set(key, ArrayOf(values));
}

void GgufWriter::SetInts(const std::string& key, const std::vector<int32_t>& values) {
  Set(key, ArrayOf(values));
}

void GgufWriter::SetFloats(const std::string& key, const std::vector<float>& values) {
  Set(key, ArrayOf(values));
}

absl::Status GgufWriter::AddTensor(const std::string& name, const WeightFormat& format,
                                   const std::vector<int64_t>& dims, std::string bytes) {
  GgufTensor shape;
  shape.format = &format;
  shape.dims = dims;
  const int64_t expected = shape.row_bytes() * shape.rows();
  if (shape.row() % format.block_elements != 0 || expected != static_cast<int64_t>(bytes.size())) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name), " of type ",
                                                   format.name, " with rows of ", shape.row(),
                                                   " cannot have ", bytes.size(), " bytes"));
  }
  tensors_.push_back({name, &format, dims, std::move(bytes)});
  return absl::OkStatus();
}

std::string GgufWriter::Bytes() const {
  std::string out;
  Append<uint32_t>(out, GgufLimits::kMagic);
  Append<uint32_t>(out, kVersion);
  Append<uint64_t>(out, tensors_.size());
  Append<uint64_t>(out, metadata_.size());
  for (const auto& [key, value] : metadata_) AppendRecord(out, key, value);
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    AppendString(out, tensor.name);
    Append<uint32_t>(out, static_cast<uint32_t>(tensor.dims.size()));
    for (int64_t dim : tensor.dims) Append<uint64_t>(out, dim);
    Append<uint32_t>(out, tensor.format->ggml_type);
    Append<uint64_t>(out, offset);
    offset += (tensor.bytes.size() + alignment_ - 1) / alignment_ * alignment_;
  }
  for (const Tensor& tensor : tensors_) {
    Pad(out, alignment_);
    out += tensor.bytes;
  }
  return out;
}

absl::Status GgufWriter::Write(const std::string& path) const {
  const std::string temporary = path + ".part";
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    const std::string bytes = Bytes();
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.close();
    if (!out) {
      std::remove(temporary.c_str());
      return absl::UnknownError(absl::StrCat(path, ": cannot be written"));
    }
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error)
    return absl::UnknownError(absl::StrCat(path, ": cannot be written: ", error.message()));
  return absl::OkStatus();
}

}  // namespace kvring
