// SPDX-License-Identifier: Apache-2.0
// Rows of codes of which each has one scale and one offset: B[r][l] = offset[r] + scale[r] * numbers[code]. So what a row's codes
// stand for is a table of 16 numbers in one register or two, and a code costs a shift and a look-up. Private to kernels/.
#pragma once

#include <cstdint>

#include "kernels/rope.h"

namespace kvring {

struct CodeRows {
  const uint8_t* words =
      nullptr;                  // as kernels/codec/bit_words.h: streams of codes run down the lanes
  int bits = 0;                 // 2 to 4
  int64_t rows = 0, lanes = 0;  // lanes at least 16
  const float* numbers = nullptr;   // [16]; from 2^bits on they repeat the first ones
  const uint8_t* scale = nullptr;   // Half [rows], any alignment
  const uint8_t* offset = nullptr;  // likewise
};

// Whether registers are long enough for tables; code for CodeRows must not be called otherwise.
bool HaveCodeTables();

// All numbers, dense.
void DecodeCodes(const CodeRows& rows, float* out);

// All numbers of a key tile (rows are channels, lanes a multiple of 16 slots), each lane turned to its own position: by base, the
// angles of lane 0, [planes][2], plus the lane's, cos and sin [planes][lanes], to the bits of turning the tile afterwards.
void DecodeTurned(const CodeRows& rows, const RopeTable& table, const float* cos, const float* sin,
                  const float* base, float* out);

}  // namespace kvring
