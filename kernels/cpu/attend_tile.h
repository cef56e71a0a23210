// SPDX-License-Identifier: Apache-2.0
// Online softmax of query rows over one decoded tile, the part of attention that is SIMD. Private to kernels/.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu/code_rows.h"

namespace kvring {

// Decoded tiles are read in whole registers: this many floats behind their last element must be readable.
inline constexpr int64_t kTilePad = 16;

// Rows up to which fp16 numbers are widened where they are multiplied: for 6 rows together that is free, a tile is not.
inline constexpr int64_t kDirectRows = 24;

// At least `floats` floats of `room`, from the begin of a cache line on.
float* TileRoom(std::vector<float>& room, int64_t floats);

struct AttendTileArgs {
  const float* q = nullptr;            // [rows][dk]
  const int64_t* positions = nullptr;  // [rows], all at or after `begin`
  int64_t rows = 0;
  int64_t first_row = 0;      // number of row 0 for the score sink
  const float* kt = nullptr;  // [dk][block]
  const float* v = nullptr;   // [block][v_stride]
  // In place of kt or v, in the same order: fp16, or codes (if HaveCodeTables()). block and dv are then multiples of 16. Nothing
  // is asked of slots from `tokens` on but that they can be read.
  const Half* half_kt = nullptr;
  const Half* half_v = nullptr;
  const CodeRows* code_kt = nullptr;
  const CodeRows* code_v = nullptr;
  int64_t v_stride = 0;  // 0: dv
  // Bytes from a key or value to what is needed after this page; 0: these are tiles, or there is no such page.
  int64_t k_ahead = 0, v_ahead = 0;
  int block = 0, dk = 0, dv = 0;
  int64_t begin = 0;  // position of slot 0
  int tokens = 0;     // slots in use
  ScoreSink* scores = nullptr;
  SoftmaxPartial partial;  // of these rows
};

// Bytes from the packed page to the next one of the same call; 0: there is none.
int64_t BytesAhead(const AttendArgs& args, const PageView& page);

// Rows [first, last) of `args` over one page, but for what keys and values are.
AttendTileArgs TileOf(const AttendArgs& args, const PageView& page, const float* q, int64_t first,
                      int64_t last, const SoftmaxPartial& partial);

// Adds the tile to every row; row r sees slots [0, min(tokens, positions[r] - begin + 1)).
void AttendTile(const AttendTileArgs& args, AttendScratch& scratch);

}  // namespace kvring
