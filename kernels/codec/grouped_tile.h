// SPDX-License-Identifier: Apache-2.0
// Pages of `int` and `nf` as tiles. A row of codes has one scale and one offset, so what its codes stand for is a table of 16
// numbers in one register or two: a code costs a shift and a look-up.
#pragma once

#include <cstdint>

#include "kernels/codec/bit_words.h"
#include "kernels/codec/page_angles.h"

namespace kvring {

struct GroupedRows {
  const uint8_t* words = nullptr;  // as bit_words.h
  int bits = 0;
  int64_t rows = 0, lanes = 0;      // lanes at least 16
  const float* numbers = nullptr;   // [16]; from 2^bits on they repeat the first ones
  const uint8_t* scale = nullptr;   // Half [rows], any alignment
  const uint8_t* offset = nullptr;  // likewise
};

// out[r][l] = offset[r] + scale[r] * numbers[code], dense. False where registers are too short for tables: nothing is done.
bool DecodeGrouped(const GroupedRows& rows, float* out);

// The same for a key tile (rows are channels, lanes the block's slots), each column turned to its own position to the bits of
// angles.RotateTile(base, out). lanes: a multiple of 16.
bool DecodeGroupedTurned(const GroupedRows& rows, const PageAngles& angles, const float* base,
                         float* out);

}  // namespace kvring
