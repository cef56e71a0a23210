// SPDX-License-Identifier: Apache-2.0
// Reads little-endian numbers off a span of bytes; past the end every read fails with where it happened.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "runtime/base/status.h"

namespace kvring {

static_assert(std::endian::native == std::endian::little,
              "a big-endian host needs byte swaps here");

class GgufCursor {
 public:
  explicit GgufCursor(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }

  // `field` is for the message alone.
  template <typename T>
  absl::Status Read(const char* field, T* value) {
    if (left() < sizeof(T)) return Short(field, sizeof(T));
    std::memcpy(value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return absl::OkStatus();
  }

  // A 64-bit length, then that many bytes; at most `limit`.
  absl::Status ReadString(const char* field, uint64_t limit, std::string* value) {
    uint64_t length = 0;
    KVRING_RETURN_IF_ERROR(Read(field, &length));
    if (length > limit) {
      return absl::InvalidArgumentError(absl::StrCat(field, " has length ", length,
                                                     ", the limit is ", limit, " (at byte ",
                                                     position_ - 8, ")"));
    }
    if (length > left()) return Short(field, length);
    value->assign(reinterpret_cast<const char*>(bytes_.data()) + position_, length);
    position_ += length;
    return absl::OkStatus();
  }

 private:
  absl::Status Short(const char* field, uint64_t wanted) const {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " needs ", wanted, " bytes at byte ", position_, ", but ", left(),
                     " are left of the file's ", bytes_.size(), ": truncated or damaged"));
  }

  std::span<const uint8_t> bytes_;
  uint64_t position_ = 0;
};

}  // namespace kvring
