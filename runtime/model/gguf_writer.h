// SPDX-License-Identifier: Apache-2.0
// Writes GGUF files, version 3, little-endian: metadata in the order it was set, tensors in the order they were added.
// The same calls give the same bytes on every machine. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/model/gguf.h"

namespace kvring {

class GgufWriter {
 public:
  // alignment: a power of two, see GgufLimits; one other than the default 32 is written as general.alignment.
  explicit GgufWriter(uint32_t alignment = 32);

  void Set(const std::string& key, GgufValue value);  // a key is set once
  void SetStrings(const std::string& key, const std::vector<std::string>& values);
  void SetInts(const std::string& key, const std::vector<int32_t>& values);
  void SetFloats(const std::string& key, const std::vector<float>& values);

  // bytes: the tensor's data in the format's own form; its size must match dims (dims[0] is the row length).
  absl::Status AddTensor(const std::string& name, const WeightFormat& format,
                         const std::vector<int64_t>& dims, std::string bytes);

  std::string Bytes() const;
  absl::Status Write(const std::string& path) const;  // through a temporary file beside it

 private:
  struct Tensor {
    std::string name;
    const WeightFormat* format;
    std::vector<int64_t> dims;
    std::string bytes;
  };
  uint32_t alignment_;
  std::vector<std::pair<std::string, GgufValue>> metadata_;
  std::vector<Tensor> tensors_;
};

}  // namespace kvring
