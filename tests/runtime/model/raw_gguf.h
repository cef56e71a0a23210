// SPDX-License-Identifier: Apache-2.0
// GGUF bytes number by number, so that every number can lie. Without changes: one key, one F32 tensor of 4 x 2, valid.
#pragma once

#include <cstdint>
#include <string>

namespace kvring {

template <typename T>
std::string Le(T number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof(T));
}

inline std::string LeString(const std::string& text) { return Le<uint64_t>(text.size()) + text; }

// A record of key, type and payload.
inline std::string RawValue(const std::string& key, uint32_t type, const std::string& payload) {
  return LeString(key) + Le(type) + payload;
}

struct RawTensor {
  std::string name = "t.weight";
  uint32_t num_dims = 2;
  std::string dims = Le<uint64_t>(4) + Le<uint64_t>(2);
  uint32_t type = 0;
  uint64_t offset = 0;
  std::string Bytes() const { return LeString(name) + Le(num_dims) + dims + Le(type) + Le(offset); }
};

struct RawGguf {
  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t num_tensors = 1;
  uint64_t num_values = 1;
  std::string values = RawValue("general.name", 8, LeString("x"));
  std::string tensors = RawTensor().Bytes();
  std::string data = std::string(32, '\0');
  uint64_t alignment = 32;

  std::string Bytes() const {
    std::string out = magic + Le(version) + Le(num_tensors) + Le(num_values) + values + tensors;
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data;
  }
};

}  // namespace kvring
