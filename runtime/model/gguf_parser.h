// SPDX-License-Identifier: Apache-2.0
// The checks behind GgufFile: bytes in, a header whose every number holds, out. No file access, no state.
//
// Nothing is allocated before its size was compared with the bytes that are left in the file, so a hostile header costs at
// most its own length times a constant. Messages name the field, and start with the file's name when ParseGguf returns.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/model/gguf.h"

namespace kvring {

// Value type ids of the format.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

struct GgufLimits {
  static constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
  static constexpr uint64_t kDefaultAlignment = 32;
  static constexpr uint64_t kMinAlignment = 8;  // the format asks for a multiple of 8
  static constexpr uint64_t kMaxAlignment =
      1u << 20;  // beyond pages of any size that weights are mapped with
  static constexpr uint64_t kMaxKeyBytes = 65535;  // the format's own limit
  // Far beyond any model (thousands of tensors, tens of keys), and small in memory.
  static constexpr uint64_t kMaxKeys = 1u << 16;
  static constexpr uint64_t kMaxTensors = 1u << 17;
  static constexpr uint32_t kMaxDims = 4;
  static constexpr uint64_t kMaxDim =
      0x7fffffff;  // rows and columns are indexed in 32 bits by matmul libraries
  // All arrays of a file together: the largest public vocabularies need 1.4 million (tokens, types, scores, merges), and
  // a value takes 40 bytes here, so this keeps the worst file below 84 MB.
  static constexpr uint64_t kMaxArrayElements = 1u << 21;
};

struct GgufHeader {
  uint32_t version = 0;
  uint64_t alignment = GgufLimits::kDefaultAlignment;
  std::vector<std::pair<std::string, GgufValue>> metadata;
  std::vector<GgufTensor> tensors;
  std::vector<std::string> warnings;
};

absl::StatusOr<GgufHeader> ParseGguf(std::span<const uint8_t> bytes, const std::string& name);

// A name from a file as part of a message: unprintable bytes escaped, long ones cut.
std::string Quoted(const std::string& name);

}  // namespace kvring
