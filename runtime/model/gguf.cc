// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/gguf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/model/gguf_parser.h"

namespace kvring {
namespace {

// Owns a file descriptor and a read-only mapping of the whole file; both may be absent.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (address_ != nullptr) munmap(address_, size_);
    if (fd_ >= 0) close(fd_);
  }

  absl::Status Open(const std::string& path);
  int fd() const { return fd_; }
  std::span<const uint8_t> bytes() const { return {static_cast<const uint8_t*>(address_), size_}; }

 private:
  int fd_ = -1;
  void* address_ = nullptr;
  size_t size_ = 0;
};

absl::Status Mapping::Open(const std::string& path) {
  const auto fail = [&](const char* what) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot ", what));
  };
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) return fail("open");
  struct stat info {};
  if (fstat(fd_, &info) != 0) return fail("read the size");
  if (!S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  if (info.st_size == 0) return absl::OkStatus();  // the parser says it
  void* address = mmap(nullptr, info.st_size, PROT_READ, MAP_PRIVATE, fd_, 0);
  if (address == MAP_FAILED) return fail("map");
  address_ = address;
  size_ = info.st_size;
  return absl::OkStatus();
}

class ParsedFile : public GgufFile {
 public:
  ParsedFile(std::string path, std::unique_ptr<Mapping> mapping, std::span<const uint8_t> bytes,
             GgufHeader header)
      : path_(std::move(path)),
        mapping_(std::move(mapping)),
        bytes_(bytes),
        header_(std::move(header)) {}

  const std::string& path() const override { return path_; }
  uint32_t version() const override { return header_.version; }
  uint64_t alignment() const override { return header_.alignment; }
  int64_t file_bytes() const override { return static_cast<int64_t>(bytes_.size()); }
  std::span<const std::pair<std::string, GgufValue>> metadata() const override {
    return header_.metadata;
  }
  std::span<const GgufTensor> tensors() const override { return header_.tensors; }
  std::span<const std::string> warnings() const override { return header_.warnings; }
  absl::Status ReadTensor(const GgufTensor& tensor, int64_t begin,
                          std::span<uint8_t> out) const override;

 private:
  absl::Status Shrunk(const GgufTensor& tensor) const;

  std::string path_;
  std::unique_ptr<Mapping> mapping_;  // null over memory
  std::span<const uint8_t> bytes_;
  GgufHeader header_;
};

absl::Status ParsedFile::Shrunk(const GgufTensor& tensor) const {
  struct stat info {};
  const int64_t now = fstat(mapping_->fd(), &info) == 0 ? info.st_size : -1;
  return absl::DataLossError(absl::StrCat(
      path_, ": tensor ", Quoted(tensor.name), " ends at byte ", tensor.offset + tensor.data.size(),
      ", but the file has become ", now, " bytes long since it was opened with ", bytes_.size()));
}

absl::Status ParsedFile::ReadTensor(const GgufTensor& tensor, int64_t begin,
                                    std::span<uint8_t> out) const {
  if (out.empty()) return absl::OkStatus();
  if (mapping_ == nullptr) {
    std::memcpy(out.data(), tensor.data.data() + begin, out.size());
    return absl::OkStatus();
  }
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = pread(mapping_->fd(), out.data() + done, out.size() - done,
                              static_cast<off_t>(tensor.offset + begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return absl::ErrnoToStatus(errno,
                                 absl::StrCat(path_, ": cannot read tensor ", Quoted(tensor.name)));
    }
    if (got == 0) return Shrunk(tensor);
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::Status WrongKind(const GgufFile& file, const std::string& key, const char* wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(file.path(), ": key ", Quoted(key), " is not ", wanted));
}

absl::StatusOr<const GgufValue*> Require(const GgufFile& file, const std::string& key) {
  const GgufValue* value = file.FindValue(key);
  if (value == nullptr)
    return absl::NotFoundError(absl::StrCat(file.path(), ": key ", Quoted(key), " is missing"));
  return value;
}

}  // namespace

int64_t GgufTensor::rows() const {
  int64_t product = 1;
  for (size_t i = 1; i < dims.size(); ++i) product *= dims[i];
  return product;
}

int64_t GgufTensor::row_bytes() const {
  return row() / format->block_elements * format->block_bytes;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  auto mapping = std::make_unique<Mapping>();
  KVRING_RETURN_IF_ERROR(mapping->Open(path));
  const std::span<const uint8_t> bytes = mapping->bytes();
  KVRING_ASSIGN_OR_RETURN(GgufHeader header, ParseGguf(bytes, path));
  return std::make_unique<ParsedFile>(path, std::move(mapping), bytes, std::move(header));
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::FromMemory(std::span<const uint8_t> bytes,
                                                               const std::string& name) {
  KVRING_ASSIGN_OR_RETURN(GgufHeader header, ParseGguf(bytes, name));
  return std::make_unique<ParsedFile>(name, nullptr, bytes, std::move(header));
}

const GgufValue* GgufFile::FindValue(const std::string& key) const {
  for (const auto& [name, value] : metadata()) {
    if (name == key) return &value;
  }
  return nullptr;
}

const GgufTensor* GgufFile::FindTensor(const std::string& name) const {
  for (const GgufTensor& tensor : tensors()) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

absl::StatusOr<int64_t> GgufFile::GetInt(const std::string& key) const {
  KVRING_ASSIGN_OR_RETURN(const GgufValue* value, Require(*this, key));
  return std::visit(
      [&](const auto& v) -> absl::StatusOr<int64_t> {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
          if (std::in_range<int64_t>(v)) return static_cast<int64_t>(v);
          return absl::InvalidArgumentError(
              absl::StrCat(path(), ": key ", Quoted(key), " is out of range: ", v));
        } else {
          return WrongKind(*this, key, "an integer");
        }
      },
      *value);
}

absl::StatusOr<double> GgufFile::GetFloat(const std::string& key) const {
  KVRING_ASSIGN_OR_RETURN(const GgufValue* value, Require(*this, key));
  return std::visit(
      [&](const auto& v) -> absl::StatusOr<double> {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
          return static_cast<double>(v);
        } else {
          return WrongKind(*this, key, "a number");
        }
      },
      *value);
}

absl::StatusOr<bool> GgufFile::GetBool(const std::string& key) const {
  KVRING_ASSIGN_OR_RETURN(const GgufValue* value, Require(*this, key));
  if (const bool* flag = std::get_if<bool>(value)) return *flag;
  return WrongKind(*this, key, "true or false");
}

absl::StatusOr<std::string> GgufFile::GetString(const std::string& key) const {
  KVRING_ASSIGN_OR_RETURN(const GgufValue* value, Require(*this, key));
  if (const std::string* text = std::get_if<std::string>(value)) return *text;
  return WrongKind(*this, key, "a string");
}

}  // namespace kvring
