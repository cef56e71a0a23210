// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/hash.h"

#include <xxhash.h>

namespace kvring {
namespace {

XXH3_state_t* State(void* state) { return static_cast<XXH3_state_t*>(state); }

}  // namespace

uint64_t Hash64(const void* data, int64_t bytes) {
  return XXH3_64bits(data, static_cast<size_t>(bytes));
}

Hash128Value Hash128(const void* data, int64_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, static_cast<size_t>(bytes));
  return {hash.high64, hash.low64};
}

std::string HashHex(uint64_t hash) {
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, hash >>= 4) text[i] = "0123456789abcdef"[hash & 15];
  return text;
}

std::string HashHex(const Hash128Value& hash) { return HashHex(hash.high) + HashHex(hash.low); }

HashStream::HashStream() : state_(XXH3_createState()) { XXH3_64bits_reset(State(state_)); }

HashStream::~HashStream() { XXH3_freeState(State(state_)); }

void HashStream::Update(const void* data, int64_t bytes) {
  XXH3_64bits_update(State(state_), data, static_cast<size_t>(bytes));
}

uint64_t HashStream::Digest() const { return XXH3_64bits_digest(State(state_)); }

}  // namespace kvring
