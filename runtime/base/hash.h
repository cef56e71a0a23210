// SPDX-License-Identifier: Apache-2.0
// XXH3 over bytes: checksums (64 bits) and content addresses (128 bits). Not cryptographic. Same value on every machine.
#pragma once

#include <cstdint>
#include <string>

namespace kvring {

uint64_t Hash64(const void* data, int64_t bytes);

struct Hash128Value {
  uint64_t high = 0, low = 0;
  bool operator==(const Hash128Value&) const = default;
};
Hash128Value Hash128(const void* data, int64_t bytes);

// Lower-case hex, most significant digit first: 16 and 32 characters, as xxhsum prints them.
std::string HashHex(uint64_t hash);
std::string HashHex(const Hash128Value& hash);

// XXH3-64 of a text that arrives in parts: equal to Hash64 of the whole. Not thread-safe.
class HashStream {
 public:
  HashStream();
  ~HashStream();
  HashStream(const HashStream&) = delete;
  HashStream& operator=(const HashStream&) = delete;
  void Update(const void* data, int64_t bytes);
  uint64_t Digest() const;  // of what was given so far; more may follow

 private:
  void* state_;
};

}  // namespace kvring
