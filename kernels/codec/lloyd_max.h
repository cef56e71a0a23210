// SPDX-License-Identifier: Apache-2.0
// Codes of near-Gaussian coefficients: Lloyd-Max tables of N(0,1) as int8, one byte of scale a vector, and the search for
// the scale (rotated-and-transform 2). The tables come from tests/golden/codec/tables.py.
//
// At b = 2, 3, 4 code c stands for level[c] * unit, ascending. At b = 8 the code is an int8 in -127..127 and unit is 1.
// Scale byte e: 0 is the zero vector, else 2^((e - 112) / 8).
#pragma once

#include <array>
#include <cstdint>

#include "kernels/codec/hadamard.h"

namespace kvring {

struct LloydMax {
  int bits = 0;
  float unit = 1.0f;
  std::array<int8_t, 16> level{};  // entries from 2^bits on repeat the first ones
};
const LloydMax& LloydMaxTable(int bits);  // bits: 2, 3, 4 or 8

float ScaleValue(uint8_t e);

// The byte whose scale is nearest in the logarithm, or the smallest that is not below s; 1..255. s > 0.
uint8_t NearestScale(float s);
uint8_t CeilScale(float s);

// The largest number of rows that EncodeLanes takes.
inline constexpr int kMaxCodeRows = 512;

// y: [rows][kLanes], one vector a lane. codes: [rows][kLanes] and e: [kLanes] as stored. saturated: [kLanes], set to the count of
// coefficients beyond what the largest scale reaches (0 in all but absurd input). A lane depends on itself alone.
void EncodeLanes(const LloydMax& table, const float* y, int rows, uint8_t* codes, uint8_t* e,
                 int32_t* saturated);

}  // namespace kvring
