// SPDX-License-Identifier: Apache-2.0
// A whole page of nuq's keys before RoPE into a tile of rotated ones, in one pass through registers: codes apart, numbers looked up,
// outliers added, planes turned, stored once. Private to kernels/. The same bits as DecodeNuqRows, AddNuqSlots and
// PageAngles::RotateTile one after the other.
#pragma once

#include <cstdint>

#include "kernels/rope.h"

namespace kvring {

// Slots of this many tokens go through registers together; blocks are multiples.
inline constexpr int kNuqKeyStrip = 32;
inline constexpr int kNuqKeySlots = 512;  // outliers at most

struct NuqKeysArgs {
  const uint8_t* words = nullptr;  // u32 [WordRows(dim, bits)][block]
  int bits = 0;                    // 2, 3, 4
  int dim = 0, block = 0;
  const float* tables = nullptr;  // [dim][kNuqTable] (nuq_tile.h)
  const uint8_t* slots =
      nullptr;  // u16 index [slot_count], Half residual [slot_count]; by ascending tokens
  int slot_count = 0;
  const RopeTable* rope = nullptr;
  const float* base = nullptr;                 // [planes][2], of slot 0
  const float *cos = nullptr, *sin = nullptr;  // [planes][block], of the offsets from slot 0
  float* kt = nullptr;                         // [dim][block]
};

void DecodeNuqKeys(const NuqKeysArgs& args);

}  // namespace kvring
