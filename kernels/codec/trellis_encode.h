// SPDX-License-Identifier: Apache-2.0
// Codes of a group of coefficients on the trellis of trellis_stream.h: Viterbi's search for the least weighted squared error at
// a gain, and the search for the gain's byte.
#pragma once

#include <cstdint>

#include "kernels/codec/hadamard.h"
#include "kernels/codec/trellis_tables.h"

namespace kvring {

inline constexpr int kTrellisMaxRows = 512;

// Coefficients of one gain.
struct TrellisGroup {
  int rows = 0;                   // at most kTrellisMaxRows
  const uint8_t* bits = nullptr;  // [rows] new bits of each, 0..6
  const float* weight =
      nullptr;  // [rows] what a squared error of a normalized coefficient weighs; positive
};

// z: [rows][kLanes] coefficients near N(0, gain^2), one vector a lane, of which `count` are in use. codes: [rows][kLanes] new bits, 0
// where there are none. e: [kLanes] gain bytes (lloyd_max.h): in, those of the code of single coefficients; 0, the zero vector,
// stays. Out: of such a byte and two on either side the one that leaves the least error, each by a search of its own; 0 where no
// codes are nearer than zeros. A lane depends on itself alone; the same bits on every instruction set.
void EncodeTrellisGroup(const TrellisGroup& group, const float* z, int count, uint8_t* codes,
                        uint8_t* e);

}  // namespace kvring
