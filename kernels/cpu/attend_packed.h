// SPDX-License-Identifier: Apache-2.0
// Attention over a packed page without decoding it: codes become int8 by table look-up and meet int8 queries in exact
// int32 sums; weights become u8 in steps of the page's largest and meet the value codes likewise (rotated-and-transform 3).
// Integer sums are exact in any order; float steps are the same for every row. So a row's bits depend on the row and the
// page alone, and are equal on all instruction sets with fused multiply-add. Private to kernels/.
//
// score(row, n) = s_n unit q_scale <q8, level[code_n]> + bias(n); w_n = p_n s_n; u_n = round(w_n 255 / max w);
// o += max w / 255 unit <u, level[code]>. Weights below 2^-100 of the row's largest add nothing.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/packed_queries.h"

namespace kvring {

inline constexpr int kPackedBlock = 64;  // slots of a page that is read this way

// What all pages of a codec share. Codes of a side: u32 words as in kernels/codec/bit_words.h.
struct PackedForm {
  int bits = 0;  // 2, 3, 4 or 8
  int dk = 0, dv = 0;
  float unit = 1.0f;              // of the levels
  const int8_t* level = nullptr;  // [16], repeating; at 8 bits the code is the level
};

// True when the codes of this form come apart in whole words.
bool PackedFormFits(const PackedForm& form);

struct PackedPage {
  const uint8_t* k_words = nullptr;   // [dk * bits / 32][64]
  const uint8_t* k_scales = nullptr;  // [64] scale bytes: 0 is zero, else 2^((e - 112) / 8)
  const uint8_t* v_words = nullptr;   // [64 * bits / 32][dv]
  const uint8_t* v_scales = nullptr;  // [64]
  int64_t next = 0;                   // bytes from this page to the one read next, 0: unknown
  // 32767 times cosines and sines of offsets k + 1/2 from the page's middle, k < 32: [stride / 2][2][32][2], two planes a
  // pair.
  const int16_t* cosines = nullptr;
  const float* turn = nullptr;  // [2][stride] cos, sin of the page's middle, position begin + 31.5
  int64_t begin = 0;            // position of slot 0
  int first = 0, tokens = 0;    // slots that are read: [first, tokens)
};

struct PackedRows {
  const PackedQueries* queries = nullptr;
  int64_t first = 0;  // number of row 0 in `queries`, and for the score sink
  int64_t rows = 0;
  const int64_t* positions = nullptr;  // [rows]
  ScoreSink* scores = nullptr;
  SoftmaxPartial partial;  // of these rows
};

// q: [rows][dk] in the codec's query domain.
void QuantizeQueries(const PackedForm& form, const float* q, int64_t rows, PackedQueries& out);

// The bias <raw_q, RoPE_n(mean)>: raw_q [rows][dk] after RoPE, mean [dk] before it.
void TurnQueries(const RopeTable& rope, const float* mean, const float* raw_q, int64_t rows,
                 PackedQueries& out);

// Up to this many rows take codes from the page's words (decode); more unpack a page once.
inline constexpr int64_t kFusedRows = 8;

// Adds the page's slots [first, tokens) at or before each row's position; rows that see none are not touched.
// next: the page that the same rows read after this one, if known: with few rows its scores are formed between the steps of
// this page's softmax, which would wait for itself otherwise. page.turn is not read when the scratch Holds the page.
void AttendPackedPage(const PackedForm& form, const PackedPage& page, const PackedPage* next,
                      const PackedRows& rows, PackedScratch& scratch);

}  // namespace kvring
