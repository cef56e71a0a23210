// SPDX-License-Identifier: Apache-2.0
// Online softmax of query rows over one decoded tile, the part of attention that is SIMD. Private to kernels/.
#pragma once

#include <cstdint>

#include "kernels/attention.h"

namespace kvring {

// Decoded tiles are read in whole registers: this many floats behind their last element must be readable.
inline constexpr int64_t kTilePad = 16;

struct AttendTileArgs {
  const float* q = nullptr;            // [rows][dk]
  const int64_t* positions = nullptr;  // [rows], all at or after `begin`
  int64_t rows = 0;
  int64_t first_row = 0;      // number of row 0 for the score sink
  const float* kt = nullptr;  // [dk][block]
  const float* v = nullptr;   // [block][dv]
  int block = 0, dk = 0, dv = 0;
  int64_t begin = 0;  // position of slot 0
  int tokens = 0;     // slots in use
  ScoreSink* scores = nullptr;
  SoftmaxPartial partial;  // of these rows
};

// Adds the tile to every row; row r sees slots [0, min(tokens, positions[r] - begin + 1)).
void AttendTile(const AttendTileArgs& args, AttendScratch& scratch);

}  // namespace kvring
