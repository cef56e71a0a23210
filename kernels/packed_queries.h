// SPDX-License-Identifier: Apache-2.0
// Queries as the attention by integer dot products reads them: made once for all pages of a call.
#pragma once

#include <cstdint>
#include <vector>

namespace kvring {

// How AttendPages reads packed pages of codecs that have both ways: decoded to fp32 tiles, or by integer dot products.
// kPlainInt8: the same arithmetic in plain loops, slow, where each rounding can be left out (to measure what it costs).
enum class AttentionMath : uint8_t { kTile, kInt8, kPlainInt8 };

struct AttentionForm {
  AttentionMath math = AttentionMath::kTile;
  // kPlainInt8: what is rounded; kInt8 rounds all.
  bool round_query = true, round_bias = true, round_weights = true;
};

struct PackedQueries {
  int64_t rows = 0;
  int dk = 0;
  int planes = 0;  // rotated planes of the bias; 0: no bias
  int stride = 0;  // planes rounded up to 16, zeros behind
  // Scores: [rows][dk], in the order in which the codec's codes come apart.
  std::vector<int8_t> q;
  int terms = 1;               // sums a key
  int steps = 1;               // numbers of q_scale a row
  std::vector<float> q_scale;  // [rows][steps] what a step stands for
  // [terms][rows] 128 times the sum of the bytes that a term has (attend_packed.h).
  std::vector<int32_t> q_sum;
  // Bias of position n, sum over planes of re cos(n theta) + im sin(n theta): [rows][2][stride] re, im in steps of z_scale
  // that keep every sum of products in 31 bits; plus the constant of channels that are not rotated.
  std::vector<float> z;
  std::vector<float> z_scale, constant;  // [rows]
  // Codecs with classes: what a unit of each coefficient of the values stands for, [dv].
  std::vector<float> value_step;
  // Their values' sums lie in a basis of the sequence: [dv][dv], what brings them to the value domain; empty: they lie there.
  std::vector<float> value_basis;
};

// Places in a thread's scratch for the rows that go through a page together, for the sizes that they were made for.
struct PackedRoom {
  int dk = 0, dv = 0, stride = -1;
  int terms = 0, groups = 0;  // a key's sums, a value's weights
  bool has_pairs = false;
  uint32_t *keys = nullptr, *values = nullptr;  // unpacked levels [dk / 4][64], [16][dv]
  // Sums with keys [rows][terms][64], even and odd parts of the bias [rows][2][32]: of a page, and of the one after it.
  int32_t *scores[2] = {}, *bias[2] = {};
  int32_t* sums = nullptr;     // [rows][dv]
  float* logits = nullptr;     // [rows][groups][64]: logits in the first group, then weights
  uint8_t* weights = nullptr;  // [rows][groups][64]
  uint32_t* z = nullptr;       // [rows][2][stride / 2, rounded up to 16] pairs of int16
  uint32_t* pairs = nullptr;   // [rows][groups][8][16] weights as codes of classes meet them
};

// Buffers of one thread.
struct PackedScratch {
  PackedScratch() = default;
  PackedScratch(const PackedScratch&) {}  // places are the copy's own: made again when needed
  PackedScratch& operator=(const PackedScratch&) = delete;
  std::vector<uint32_t> words;
  PackedRoom room;
  // The page whose scores and bias stand in room.scores[turn] already, for these rows of the call under way; null: none.
  const uint8_t* ahead = nullptr;
  int64_t ahead_first = 0, ahead_rows = 0;
  int turn = 0;
  // Sums of values in a basis of the sequence (PackedQueries::value_basis) of the call under way: [rows][dv], relative to the
  // logit [rows]. Not in use until `turned`.
  bool turned = false;
  std::vector<float> turned_o, turned_m;

  // At the begin of a call that the one before it announced.
  void GoOn() { turned = false; }
  // At the begin of any other: the addresses of the last one may hold other numbers now.
  void Forget() {
    ahead = nullptr;
    turned = false;
  }
  bool Holds(const uint8_t* page, int64_t first, int64_t rows) const {
    return page == ahead && first == ahead_first && rows == ahead_rows;
  }
};

}  // namespace kvring
