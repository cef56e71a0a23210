// SPDX-License-Identifier: Apache-2.0
// Codes of `tc`: Lloyd-Max levels of N(0,1) at 1..6 bits as int8 with a unit, and the search for a gain over up to 64
// normalized coefficients of unlike widths (rotated-and-transform 4). Levels come from tests/golden/codec/tables.py.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/codec/hadamard.h"
#include "kernels/codec/tc_bits.h"

namespace kvring {

struct TcLevels {
  float unit = 0.0f;
  std::array<int8_t, 64> level{};  // [2^bits] ascending, zeros beyond
  std::array<float, 64> number{};  // unit * level
};
const TcLevels& TcLevelsOf(int bits);  // 1..6

// Coefficients of one gain: classes of 8, the last one may be shorter.
struct TcGainGroup {
  int rows = 0;                   // at most kTcGroup
  const uint8_t* bits = nullptr;  // [classes]
  const float* weight =
      nullptr;  // [rows] what a squared error of a normalized coefficient weighs (lambda)
};

// z: [rows][kLanes] normalized coefficients, one vector a lane. codes: [rows][kLanes], untouched where a class has no bits. e:
// [kLanes] gain bytes, 0: the coefficients are nearer to zero than to any code, or have no bits. saturated: [kLanes] coefficients
// beyond what the largest gain reaches. A lane depends on itself alone; the same bits on every instruction set.
//
// The gain starts as the rms of the coefficients that have bits; twice {code at the gain; gain = sum w z c / sum w c^2}; of its
// byte and the two on either side the one with the least error codes the coefficients.
void EncodeTcGroup(const TcGainGroup& group, const float* z, uint8_t* codes, uint8_t* e,
                   int32_t* saturated);

}  // namespace kvring
