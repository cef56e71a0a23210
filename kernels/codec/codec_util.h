// SPDX-License-Identifier: Apache-2.0
// What codecs share when they are made and when they read rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/codec.h"

namespace kvring {

// Checks the flags against the row's own list and the shape against `limits`. Returns what is wrong, or "".
struct ShapeLimits {
  int min_dim = 1, max_dim = 512;
  int block_multiple = 16;  // of block_tokens
  bool rope = false;        // needs a table of even head_dim for every layer
};
std::string CheckOptions(const CodecRow& row, const CodecOptions& options,
                         const ShapeLimits& limits);

bool HasFlag(const CodecOptions& options, const std::string& flag);

// Name with the given options in the row's own order: "rot4:no-mean:g64".
std::string CanonicalId(const CodecRow& row, const CodecOptions& options);

bool AllFinite(const float* x, int64_t n);

// What Encode answers when AllFinite says no: nothing is stored.
inline constexpr Error kNotFinite{"a key or value is NaN or infinite"};

// to[i] = sink row as fp32.
void LoadHalfRow(const Half* from, int n, float* to);

// Column `slot` of tile [rows][lanes] = x.
void StoreColumn(const float* x, int rows, int64_t slot, int64_t lanes, float* tile);

// The key tile's [dk][block] sinks and unused slots: columns 0..sinks-1 from page.sink_k, columns from page.tokens on zero.
void OverlayKeySinks(const PageView& page, int dk, int64_t block_tokens, float* kt);

// The value tile's sinks and unused slots: rows 0..sinks-1 from page.sink_v, rows from page.tokens on zero.
void OverlayValueSinks(const PageView& page, int dv, int block_tokens, float* v);

// Rows of the table, one per file of codecs.
CodecMade MakeF16(const CodecRow& row, const CodecOptions& options);
CodecMade MakeF32(const CodecRow& row, const CodecOptions& options);
CodecMade MakeRot(const CodecRow& row, const CodecOptions& options);
CodecMade MakeInt(const CodecRow& row, const CodecOptions& options);
CodecMade MakeNf(const CodecRow& row, const CodecOptions& options);
CodecMade MakeNuq(const CodecRow& row, const CodecOptions& options);
CodecMade MakeTc(const CodecRow& row, const CodecOptions& options);

}  // namespace kvring
