// SPDX-License-Identifier: Apache-2.0
// A whole page of nuq's keys before RoPE into a tile of rotated ones, in one pass through registers: codes apart, numbers looked up,
// planes turned, stored once. For pages without outliers: those have their places in a tile that is not turned yet. Private to
// kernels/. The same bits as DecodeNuqRows and PageAngles::RotateTile one after the other.
#pragma once

#include <cstdint>

#include "kernels/codec/page_angles.h"

namespace kvring {

struct NuqKeysArgs {
  const uint8_t* words = nullptr;  // u32 [WordRows(dim, bits)][block], block those of the angles
  int bits = 0;                    // 2, 3, 4
  const float* tables = nullptr;   // [dim][kNuqTable] (nuq_tile.h)
  const PageAngles* angles = nullptr;
  const float* base = nullptr;  // [planes][2], of slot 0
  float* kt = nullptr;          // [dim][block]
};

void DecodeNuqKeys(const NuqKeysArgs& args);

}  // namespace kvring
