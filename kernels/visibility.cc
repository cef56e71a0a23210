// SPDX-License-Identifier: Apache-2.0
#include "kernels/visibility.h"

#include "kernels/codec.h"

namespace kvring {
namespace {

// True when position alone says that the block has no packed form for this query: the codec's sequence state does not
// exist yet, or its page-wide parameters do not.
bool CannotBePacked(const CodecTraits& codec, int block_tokens, int64_t query,
                    int64_t block_begin) {
  if (codec.prefix_tokens > 0 && query <= codec.prefix_tokens - 1) return true;
  return codec.page_scoped() && block_begin + block_tokens - 1 > query;
}

}  // namespace

bool BlockIsExact(const VisibilityRule& rule, const CodecTraits& codec, int block_tokens,
                  int64_t query, int64_t block_begin, int64_t chunk_begin) {
  if (codec.lossless) return false;
  switch (rule.kind) {
    case Visibility::kTeacher:
      // The whole window is encoded before any query looks, so position decides nothing: what has packed bytes is read
      // packed, and a page without them (an incomplete page, a sequence shorter than the prefix) is read exact.
      return false;
    case Visibility::kExactCell:
      if (query / rule.cell == block_begin / rule.cell) return true;
      break;
    case Visibility::kExactChunk:
      // A block that the chunk covers only in part is read packed: its older exact rows may be gone.
      if (block_begin >= chunk_begin) return true;
      break;
    case Visibility::kPacked:
      break;
  }
  return CannotBePacked(codec, block_tokens, query, block_begin);
}

bool IsExact(const VisibilityRule& rule, const CodecTraits& codec, int block_tokens, int64_t query,
             int64_t key, int64_t chunk_begin) {
  if (key < codec.sink_tokens) return true;
  const int64_t block_begin = key / block_tokens * block_tokens;
  return BlockIsExact(rule, codec, block_tokens, query, block_begin, chunk_begin);
}

}  // namespace kvring
