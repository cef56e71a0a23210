// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/codec_util.h"

#include <algorithm>
#include <bit>

namespace kvring {
namespace {

std::vector<std::string> SplitFlags(const std::string& list) {
  std::vector<std::string> flags;
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    flags.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return flags;
}

bool Contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

std::string CheckFlags(const CodecRow& row, const CodecOptions& options) {
  const std::vector<std::string> known = SplitFlags(row.flags);
  for (const std::string& flag : options.flags) {
    if (Contains(known, flag)) continue;
    const std::string name = std::string("codec ") + row.name;
    if (known.empty()) return name + " takes no options, got '" + flag + "'";
    return name + " has no option '" + flag + "'; it takes " + row.flags;
  }
  return "";
}

std::string CheckDim(const CodecRow& row, const char* side, int dim, const ShapeLimits& limits) {
  if (dim >= limits.min_dim && dim <= limits.max_dim) return "";
  return std::string("codec ") + row.name + " cannot hold " + side + " of head size " +
         std::to_string(dim) + ": it takes " + std::to_string(limits.min_dim) + " to " +
         std::to_string(limits.max_dim);
}

std::string CheckRope(const CodecRow& row, const CodecOptions& options) {
  const KvShape& shape = options.shape;
  if (static_cast<int>(options.rope.size()) != shape.layers) {
    return std::string("codec ") + row.name + " needs a RoPE table for each of " +
           std::to_string(shape.layers) + " layers, got " + std::to_string(options.rope.size());
  }
  for (const RopeTable* table : options.rope) {
    if (table == nullptr || table->head_dim != shape.dk || 2 * table->planes() > shape.dk) {
      return std::string("codec ") + row.name + " needs RoPE tables of the keys' head size " +
             std::to_string(shape.dk);
    }
  }
  return "";
}

}  // namespace

std::string CheckOptions(const CodecRow& row, const CodecOptions& options,
                         const ShapeLimits& limits) {
  const KvShape& shape = options.shape;
  std::string wrong = CheckFlags(row, options);
  if (wrong.empty()) wrong = CheckDim(row, "keys", shape.dk, limits);
  if (wrong.empty()) wrong = CheckDim(row, "values", shape.dv, limits);
  if (wrong.empty() &&
      (shape.block_tokens < 1 || shape.block_tokens % limits.block_multiple != 0)) {
    wrong = std::string("codec ") + row.name + " needs blocks of a multiple of " +
            std::to_string(limits.block_multiple) + " tokens, got " +
            std::to_string(shape.block_tokens);
  }
  if (wrong.empty() && (shape.kv_heads < 1 || shape.query_heads % shape.kv_heads != 0)) {
    wrong = std::string("codec ") + row.name + ": " + std::to_string(shape.query_heads) +
            " query heads do not divide over " + std::to_string(shape.kv_heads) + " KV heads";
  }
  if (wrong.empty() && limits.rope) wrong = CheckRope(row, options);
  return wrong;
}

bool HasFlag(const CodecOptions& options, const std::string& flag) {
  return Contains(options.flags, flag);
}

std::string CanonicalId(const CodecRow& row, const CodecOptions& options) {
  std::string id = row.name;
  for (const std::string& flag : SplitFlags(row.flags)) {
    if (HasFlag(options, flag)) id += ":" + flag;
  }
  return id;
}

bool AllFinite(const float* x, int64_t n) {
  uint32_t top = 0;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  return top < 0x7f800000u;
}

void LoadHalfRow(const Half* from, int n, float* to) {
  for (int i = 0; i < n; ++i) to[i] = HalfToFloat(from[i]);
}

void StoreColumn(const float* x, int rows, int64_t slot, int64_t lanes, float* tile) {
  for (int i = 0; i < rows; ++i) tile[i * lanes + slot] = x[i];
}

void OverlayKeySinks(const PageView& page, int dk, int64_t block_tokens, float* kt) {
  std::vector<float> column(dk);
  const int sinks = std::min(page.sinks, page.tokens);
  for (int t = 0; t < sinks; ++t) {
    LoadHalfRow(page.sink_k + t * page.sink_k_stride, dk, column.data());
    StoreColumn(column.data(), dk, t, block_tokens, kt);
  }
  if (page.tokens == block_tokens) return;
  for (int64_t i = 0; i < dk; ++i)
    std::fill(kt + i * block_tokens + page.tokens, kt + (i + 1) * block_tokens, 0.0f);
}

void OverlayValueSinks(const PageView& page, int dv, int block_tokens, float* v) {
  const int sinks = std::min(page.sinks, page.tokens);
  for (int t = 0; t < sinks; ++t) {
    LoadHalfRow(page.sink_v + t * page.sink_v_stride, dv, v + static_cast<int64_t>(t) * dv);
  }
  std::fill(v + static_cast<int64_t>(page.tokens) * dv, v + static_cast<int64_t>(block_tokens) * dv,
            0.0f);
}

}  // namespace kvring
