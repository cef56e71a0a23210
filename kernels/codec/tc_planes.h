// SPDX-License-Identifier: Apache-2.0
// Codes of one class of `tc` in a page: 8 coefficients of all B slots at b bits, b * B bytes without padding for any b.
//
// The bits of b say which planes a class has, in this order: 4 (u32 [B]), 2 (u16 [B]), 1 (u8 [B]); a code's low bits lie in
// the widest plane. So every width is read with whole words: element e of a plane holds eight codes, at bit
//   4 r in the 4-plane, kTwoAt[r] in the 2-plane, kOneAt[r] in the 1-plane,
// where r is the coefficient and e the slot for keys, and r = slot % 8, e = slot / 8 * 8 + coefficient for values. With these
// orders (x >> 4 k) & 0x0f0f0f0f, ((w | w << 12) >> 2 k) & 0x03030303 and ((v | v << 7 | v << 14 | v << 21) >> 4 k) & 0x01010101
// all give the bytes r = k, k + 2, k + 4, k + 6: what an int8 dot product sums in one lane.
#pragma once

#include <cstdint>

namespace kvring {

inline constexpr int kTwoAt[8] = {0, 2, 8, 10, 4, 6, 12, 14};
inline constexpr int kOneAt[8] = {0, 4, 1, 5, 2, 6, 3, 7};

inline int64_t ClassBytes(int bits, int block) { return int64_t{bits} * block; }

// Writes the codes [8] of one slot; other slots keep theirs.
void PutKeyClass(const uint8_t* codes, int bits, int slot, int block, uint8_t* planes);
void PutValueClass(const uint8_t* codes, int bits, int slot, int block, uint8_t* planes);

// The plain reading of one code: coefficient r of a slot.
int KeyCodeAt(const uint8_t* planes, int bits, int slot, int block, int r);
int ValueCodeAt(const uint8_t* planes, int bits, int slot, int block, int r);

// numbers: [64], what codes stand for.
// kt [rows][block] += lane_scale[t] * numbers[code], rows <= 8 coefficients.
void AddKeyClass(const uint8_t* planes, int bits, int rows, int block, const float* numbers,
                 const float* lane_scale, float* kt);
// out[t][c] = scale[t] * (factor[c] * numbers[code]) for t < tokens rounded up to 8, c < 8; rows are `stride` floats.
void ReadValueClass(const uint8_t* planes, int bits, int tokens, int block, const float* numbers,
                    const float* scale, const float* factor, int64_t stride, float* out);

}  // namespace kvring
