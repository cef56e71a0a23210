// SPDX-License-Identifier: Apache-2.0
// A GGUF file (versions 2 and 3), memory-mapped, every number in its header distrusted (F11, F15). After Open succeeds,
// every tensor lies wholly inside the file, aligned, with a known type and a size that matches its shape.
// Immutable and thread-safe after Open; views stay valid while the GgufFile lives. A file that another process cuts short
// in place afterwards takes the mapping with it: weights and rows of the embedding go through ReadTensor, which reports that.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/weights/weight_format.h"
#include "runtime/base/status.h"

namespace kvring {

struct GgufArray;
using GgufValue =
    std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t, float,
                 double, bool, std::string, std::shared_ptr<GgufArray>>;
struct GgufArray {
  uint32_t element_type = 0;      // GGUF's value type id
  std::vector<GgufValue> values;  // nested arrays are refused
};

struct GgufTensor {
  std::string name;
  const WeightFormat* format = nullptr;
  std::vector<int64_t> dims;  // GGUF order: dims[0] is the row length (fastest)
  uint64_t offset = 0;        // from the start of the file
  std::span<const uint8_t> data;

  int64_t row() const { return dims.empty() ? 1 : dims[0]; }
  int64_t rows() const;  // product of the other dims
  int64_t elements() const { return row() * rows(); }
  int64_t row_bytes() const;  // rows are whole blocks
};

class GgufFile {
 public:
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  // The same checks over bytes that the caller keeps alive; `name` stands for the path in messages.
  static absl::StatusOr<std::unique_ptr<GgufFile>> FromMemory(std::span<const uint8_t> bytes,
                                                              const std::string& name);
  virtual ~GgufFile() = default;

  virtual const std::string& path() const = 0;
  virtual uint32_t version() const = 0;
  virtual uint64_t alignment() const = 0;
  virtual int64_t file_bytes() const = 0;
  virtual std::span<const std::pair<std::string, GgufValue>> metadata() const = 0;  // in file order
  virtual std::span<const GgufTensor> tensors() const = 0;
  virtual std::span<const std::string> warnings() const = 0;  // e.g. bytes after the last tensor

  // Copies out.size() bytes from byte `begin` of the tensor on. DATA_LOSS with file, tensor, expected and actual size when
  // the file has become shorter since Open; begin + out.size() <= tensor.data.size().
  virtual absl::Status ReadTensor(const GgufTensor& tensor, int64_t begin,
                                  std::span<uint8_t> out) const = 0;

  const GgufValue* FindValue(const std::string& key) const;     // null when absent
  const GgufTensor* FindTensor(const std::string& name) const;  // null when absent

  // Typed look-ups: NOT_FOUND when absent, INVALID_ARGUMENT when of another kind or out of range; the message names file
  // and key. GetFloat takes integers too.
  absl::StatusOr<int64_t> GetInt(const std::string& key) const;
  absl::StatusOr<double> GetFloat(const std::string& key) const;
  absl::StatusOr<bool> GetBool(const std::string& key) const;
  absl::StatusOr<std::string> GetString(const std::string& key) const;
};

}  // namespace kvring
