// SPDX-License-Identifier: Apache-2.0
// What a query sees of recent keys: exact rows or packed codes. A pure function of positions and the codec, never of
// chunks, company or ranks, so that every schedule gives the same bits.
#pragma once

#include <cstdint>

namespace kvring {

enum class Visibility : uint8_t {
  kExactCell,  // keys of the query's own cell are exact (default)
  kPacked,     // everything that can be packed is read packed
  kTeacher,    // the whole window is packed first: how codecs are compared
  kExactChunk,  // keys of the query's own chunk are exact; depends on where chunks are cut: for comparison only
};

struct VisibilityRule {
  Visibility kind = Visibility::kExactCell;
  int64_t cell = 512;  // tokens; a multiple of the block
};

struct CodecTraits;

// True when a query at `query` reads the whole block that starts at `block_begin` from exact rows. Sinks, which are
// exact inside a packed block, are not part of this answer. `chunk_begin` matters for kExactChunk only.
bool BlockIsExact(const VisibilityRule& rule, const CodecTraits& codec, int block_tokens,
                  int64_t query, int64_t block_begin, int64_t chunk_begin);

// The same for one key, sinks included: the rule as the design states it.
bool IsExact(const VisibilityRule& rule, const CodecTraits& codec, int block_tokens, int64_t query,
             int64_t key, int64_t chunk_begin);

}  // namespace kvring
