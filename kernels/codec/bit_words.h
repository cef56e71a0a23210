// SPDX-License-Identifier: Apache-2.0
// Codes of a page side: a matrix of codes [rows][lanes] as little-endian bit streams that run down the columns.
//
// words: u32 [WordRows(rows, bits)][lanes]. Column l holds its rows' codes as one bit stream: code of row r at bit bits * r
// (KVQuant 5.1: 8 codes a word at 4 bits, 16 at 2, 32 codes in 3 words at 3 bits). Keys: rows are coefficients, lanes are
// the block's slots. Values: rows are slots, lanes are coefficients. So a vector register holds one code of 16 columns, a
// row of a tile is written whole, and (word >> 4k) & 0x0f0f0f0f gives each lane four bytes for an int8 dot product.
#pragma once

#include <cstdint>

namespace kvring {

inline int64_t WordRows(int64_t rows, int bits) { return (rows * bits + 31) / 32; }
inline int64_t WordBytes(int64_t rows, int64_t lanes, int bits) {
  return WordRows(rows, bits) * lanes * 4;
}

// Writes column `lane`: codes [rows]. Replaces what was there, padding bits included.
void PackColumn(const uint8_t* codes, int64_t rows, int bits, int64_t lane, int64_t lanes,
                uint8_t* words);

// Writes row `row`: codes [lanes]. Other rows keep their bits.
void PackRow(const uint8_t* codes, int64_t lanes, int bits, int64_t row, uint8_t* words);

// The plain reading of one code.
uint32_t CodeAt(const uint8_t* words, int64_t lanes, int bits, int64_t row, int64_t lane);

// out[r][l] += lane_scale[l] * level[code], r < rows, l < lanes (a multiple of 16). At 8 bits the code is the level.
// level: int8 [16], entries from 2^bits on repeat the first ones.
void AddLevels(const uint8_t* words, int bits, int64_t rows, int64_t lanes, const int8_t* level,
               const float* lane_scale, float* out);

// How codes become numbers in UnpackRows.
enum class CodeKind : uint8_t { kLevel, kInteger, kTable };
struct CodeMap {
  CodeKind kind = CodeKind::kInteger;
  const int8_t* level = nullptr;  // kLevel, as above
  const float* table = nullptr;   // kTable: [2^bits]
};

// out[r][l] = offset[r] + scale[r] * number(code); rows of words have `word_lanes` lanes, of `out` out_stride floats.
// count: lanes to unpack, at least 16.
struct UnpackArgs {
  const uint8_t* words = nullptr;
  int bits = 0;
  int64_t rows = 0, count = 0, word_lanes = 0, out_stride = 0;
  const float* scale = nullptr;   // [rows]
  const float* offset = nullptr;  // [rows]
  float* out = nullptr;
};
void UnpackRows(const CodeMap& map, const UnpackArgs& args);

}  // namespace kvring
