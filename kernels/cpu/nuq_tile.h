// SPDX-License-Identifier: Apache-2.0
// Codes of one page side of nuq into an fp32 tile. Scale and offset belong to a row of the tile, a channel of keys or a token of
// values, so the few numbers that a row's codes stand for are formed once a row and looked up in registers: a shift, a look-up
// and a store for 16 elements. Private to kernels/. The plain form is in kernels/ref/nuq_ref.h; the same bits on every
// instruction set.
#pragma once

#include <cstdint>

#include "kernels/half.h"

namespace kvring {

// Tables are 16 floats wide; where codes have fewer bits they repeat, so that bits above a code need not be cleared.
inline constexpr int kNuqTable = 16;
void RepeatNuqTable(const float* numbers, int bits, float* table /* [kNuqTable] */);

struct NuqTileArgs {
  const uint8_t* words =
      nullptr;   // u32 [WordRows(at least rows, bits)][lanes] (kernels/codec/bit_words.h)
  int bits = 0;  // 2, 3, 4
  int64_t rows = 0, lanes = 0;  // at least 16 lanes
  float* out = nullptr;         // [rows][lanes]
};

// out[r][l] = tables[r][code], tables [rows][kNuqTable].
void DecodeNuqRows(const NuqTileArgs& args, const float* tables);

// out[r][l] = offset[r] + scale[r] * table[code].
struct NuqRowScales {
  const float* table = nullptr;  // [kNuqTable]
  const Half* scale = nullptr;   // [rows], finite
  const Half* offset = nullptr;
};
void DecodeNuqRows(const NuqTileArgs& args, const NuqRowScales& scales);

}  // namespace kvring
