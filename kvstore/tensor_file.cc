// SPDX-License-Identifier: Apache-2.0
// Writing, and files on disk. Reading the bytes is in tensor_parse.cc.
#include "kvstore/tensor_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

namespace kvring {
namespace {

using Json = nlohmann::ordered_json;

// Tables of the largest models take some 10 MB a codec; a file beyond this is not one of ours.
constexpr int64_t kLargestFile = int64_t{1} << 30;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using FileHandle = std::unique_ptr<std::FILE, CloseFile>;

std::string Because(const std::string& path, const char* what) {
  return absl::StrCat(path, ": ", what, ": ", std::strerror(errno));
}

Json HeaderJson(const TensorFile& file) {
  Json header = Json::object();
  if (!file.metadata.empty()) {
    Json& metadata = header["__metadata__"] = Json::object();
    for (const auto& [key, value] : file.metadata) metadata[key] = value;
  }
  int64_t offset = 0;
  for (const auto& [name, tensor] : file.tensors) {
    const int64_t end = offset + static_cast<int64_t>(tensor.values.size() * sizeof(float));
    header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  return header;
}

absl::Status WriteBytes(const std::string& bytes, const std::string& path) {
  FileHandle file(std::fopen(path.c_str(), "wb"));
  if (!file) return absl::InvalidArgumentError(Because(path, "cannot be written"));
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file.get()) == bytes.size() &&
                       std::fflush(file.get()) == 0 && fsync(fileno(file.get())) == 0;
  // Closing reports what a full disk refused late.
  if (std::fclose(file.release()) != 0 || !written) {
    return absl::ResourceExhaustedError(Because(path, "could not be written whole"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string SerializeTensorFile(const TensorFile& file) {
  std::string header = HeaderJson(file).dump(-1, ' ', false, Json::error_handler_t::replace);
  header.append((8 - header.size() % 8) % 8, ' ');  // so that the data is aligned in the file
  const uint64_t header_bytes = header.size();
  std::string bytes(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  bytes += header;
  for (const auto& [name, tensor] : file.tensors) {
    bytes.append(reinterpret_cast<const char*>(tensor.values.data()),
                 tensor.values.size() * sizeof(float));
  }
  return bytes;
}

absl::Status WriteTensorFile(const TensorFile& file, const std::string& path) {
  const std::string unfinished = absl::StrCat(path, ".unfinished-", getpid());
  const absl::Status status = WriteBytes(SerializeTensorFile(file), unfinished);
  if (status.ok() && std::rename(unfinished.c_str(), path.c_str()) == 0) return status;
  const absl::Status renamed = absl::InvalidArgumentError(Because(path, "cannot be replaced"));
  std::remove(unfinished.c_str());
  return status.ok() ? renamed : status;
}

absl::StatusOr<TensorFile> ReadTensorFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    if (!std::filesystem::exists(path, error)) {
      return absl::NotFoundError(absl::StrCat(path, ": no such file"));
    }
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a file"));
  }
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error) return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.message()));
  if (size > kLargestFile) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", size, " bytes; tensor files have at most ", kLargestFile));
  }
  const FileHandle file(std::fopen(path.c_str(), "rb"));
  if (!file) return absl::InvalidArgumentError(Because(path, "cannot be read"));
  std::string bytes(size, '\0');
  bytes.resize(std::fread(bytes.data(), 1, bytes.size(), file.get()));
  return ParseTensorFile(bytes, path);
}

}  // namespace kvring
