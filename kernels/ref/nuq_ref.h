// SPDX-License-Identifier: Apache-2.0
// A page side of nuq decoded element by element: what defines the fast forms (kernels/cpu/nuq_*.h), which give the same bits. Tests
// alone use it.
#pragma once

#include <cstdint>

#include "kernels/codec/page_angles.h"
#include "kernels/half.h"

namespace kvring {

// A matrix of codes (kernels/codec/bit_words.h): keys have a channel a row and a slot a lane, values the reverse.
struct NuqCodesRef {
  const uint8_t* words = nullptr;
  int bits = 0;
  int64_t rows = 0, lanes = 0;
};

// out[r][l] = offset[r] + scale[r] * numbers[code].
void NuqRowsRef(const NuqCodesRef& codes, const float* numbers, const float* scale,
                const float* offset, float* out);

// Fixed slots: tile[token * token_stride + channel * channel_stride] += residual, until a slot is empty or its token not in use.
struct NuqSlotsRef {
  const uint8_t* at = nullptr;  // u16 index [slots], Half residual [slots]
  int slots = 0, dim = 0, tokens = 0;
  int64_t token_stride = 0, channel_stride = 0;
};
void AddNuqSlotsRef(const NuqSlotsRef& slots, float* tile);

// PageAngles::RotateTile plane by plane and slot by slot.
void RotateKeysRef(const PageAngles& angles, const float* base, float* tile);

}  // namespace kvring
