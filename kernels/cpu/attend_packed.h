// SPDX-License-Identifier: Apache-2.0
// Attention over a packed page without decoding it: codes become int8 by table look-up and meet int8 queries in exact
// int32 sums; weights become u8 in steps of the page's largest and meet the value codes likewise (rotated-and-transform 3).
// Integer sums are exact in any order; float steps are the same for every row. So a row's bits depend on the row and the
// page alone, and are equal on all instruction sets with fused multiply-add. Private to kernels/.
//
// One width (rot): score(row, n) = s_n unit q_scale <q8, level[code_n]> + bias(n); w_n = p_n s_n; u_n = round(w_n 255 / max w);
// o += max w / 255 unit <u, level[code]>, p_n being relative to a logit near the row's largest (kPackedSlack). Pages whose
// weights are all below 2^-100 of it add no value.
//
// Classes (tc): 8 coefficients each, of 0 to 6 bits, and a scale s_g a token and 64 coefficients. Units of the levels are part
// of the query, whose first 16 coefficients have a step of their own: score = bias + sum over terms of s_g(term) q_scale(term)
// <q8, level>, the terms being coefficients 0..15, 16..63, 64..127 and so on. Weights w_n,g = p_n s_n,g are rounded by group;
// o_i += max w_g / 255 value_step_i <u_g, level_i>.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/attention.h"
#include "kernels/packed_queries.h"

namespace kvring {

inline constexpr int kPackedBlock = 64;     // slots of a page that is read this way
inline constexpr int kPackedClass = 8;      // coefficients of a class
inline constexpr int kPackedGainRows = 64;  // coefficients of a scale
inline constexpr int kPackedMaxDim = 512;
// A row's sums are relative to a logit that stays until a page passes it by more than this: weights p stay below 2^8.
inline constexpr float kPackedSlack = 8.0f;
inline constexpr float kLeastWeight =
    0x1p-100f;  // the largest of a page, below which it adds no value
inline constexpr float kNoLogit = -std::numeric_limits<float>::infinity();  // of a row without keys

// Levels of classes by bits.
struct ClassLevels {
  float unit[7];
  alignas(64) int8_t level[7][64];  // repeating after 2^bits
};

// What all pages of a codec, or of one (layer, head), share. One width: codes of a side are u32 words as in
// kernels/codec/bit_words.h. Classes: planes as in kernels/codec/tc_planes.h.
struct PackedForm {
  int bits = 0;  // 2, 3, 4 or 8; 0: classes
  int dk = 0, dv = 0;
  float unit = 1.0f;              // of the levels
  const int8_t* level = nullptr;  // [16], repeating; at 8 bits the code is the level
  // Classes: bits of each, 0..6, and their levels.
  const uint8_t *k_bits = nullptr, *v_bits = nullptr;  // [dk / 8], [dv / 8]
  const ClassLevels* levels = nullptr;

  // Integer sums of a key, and kinds of weights of a value: those that any class with bits belongs to.
  int Terms() const {
    const int classes = Coded(k_bits, dk);
    return bits > 0 ? 1 : 2 + std::max(0, classes - 1) / kGroup;
  }
  int Groups() const {
    return bits > 0 ? 1 : std::max(1, (Coded(v_bits, dv) + kGroup - 1) / kGroup);
  }
  // Classes [TermBegin, TermEnd) of a term, its scale among those of a token and its step among those of a query.
  int TermBegin(int term) const { return term == 0 ? 0 : term == 1 ? 2 : kGroup * (term - 1); }
  int TermEnd(int term) const { return std::min(dk / kPackedClass, term == 0 ? 2 : kGroup * term); }
  static constexpr int TermScale(int term) { return std::max(0, term - 1); }
  static constexpr int TermStep(int term) { return std::min(1, term); }

 private:
  static constexpr int kGroup = kPackedGainRows / kPackedClass;
  // Classes up to the last one that has bits.
  static int Coded(const uint8_t* class_bits, int dim) {
    int count = class_bits == nullptr ? 0 : dim / kPackedClass;
    while (count > 0 && class_bits[count - 1] == 0) --count;
    return count;
  }
};

// True when the codes of this form come apart in whole words.
bool PackedFormFits(const PackedForm& form);

// The bias of a page's slots as a sum of even and odd functions of the offset from its middle (kernels/codec/page_turns.h).
struct BiasBasis {
  int functions = 0;  // of each parity, an even number
  int folded = 0;  // planes before this one are a function each, the others two functions together
  // 32767 times the functions at offsets k + 1/2, k < 32: [functions / 2][2][32][2]: even, then odd ones, two a pair.
  const int16_t* values = nullptr;
  const float* fold = nullptr;  // [4][stride - folded]: of both even and both odd functions
};

struct PackedPage {
  // One width: [dk * bits / 32][64]; classes: their planes, 64 bits bytes a class.
  const uint8_t* k_words = nullptr;
  const uint8_t* k_scales = nullptr;  // [groups][64] scale bytes: 0 is zero, else 2^((e - 112) / 8)
  const uint8_t* v_words = nullptr;   // [64 * bits / 32][dv], or planes
  const uint8_t* v_scales = nullptr;  // [groups][64]
  int64_t next = 0;                   // bytes from this page to the one read next, 0: unknown
  const BiasBasis* basis = nullptr;
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
  // Where values are summed instead, [rows][dv], and the logit that each row's sum is relative to; null: in `partial`.
  float *o = nullptr, *o_m = nullptr;
};

// q: [rows][dk] in the codec's query domain.
void QuantizeQueries(const PackedForm& form, const float* q, int64_t rows, PackedQueries& out);

// The bias <raw_q, RoPE_n(mean)>: raw_q [rows][dk] after RoPE, mean [dk] before it.
void TurnQueries(const RopeTable& rope, const float* mean, const float* raw_q, int64_t rows,
                 PackedQueries& out);

// Up to this many rows take codes from the page's words (decode); more unpack a page once.
inline constexpr int64_t kFusedRows = 8;
// Rows that go through the steps of a page together.
inline constexpr int64_t kPackedGroup = 12;

// Pages that rows read one after the other. next: what the same rows read after the last of them, if known: with few rows the
// scores of each page are formed between the steps of the softmax of the one before it, which would wait for itself otherwise.
// pages[0].turn is not read when the scratch Holds that page.
struct PackedRun {
  const PackedPage* pages = nullptr;
  int64_t count = 0;
  const PackedPage* next = nullptr;
};

// Adds each page's slots [first, tokens) at or before each row's position; rows that see none are not touched.
void AttendPackedPages(const PackedForm& form, const PackedRun& run, const PackedRows& rows,
                       PackedScratch& scratch);

// What AttendPackedPages calls for forms with classes, when the scratch has room.
void AttendClassPages(const PackedForm& form, const PackedRun& run, const PackedRows& rows,
                      PackedScratch& scratch);

}  // namespace kvring
