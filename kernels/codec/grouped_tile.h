// SPDX-License-Identifier: Apache-2.0
// Key tiles of codes before RoPE, turned on the way out of the codes.
#pragma once

#include "kernels/codec/page_angles.h"
#include "kernels/cpu/code_rows.h"

namespace kvring {

// DecodeCodes of a whole page's keys (rows are channels, lanes the block's slots) and angles.RotateTile(base, out), to the same
// bits. Needs HaveCodeTables(); lanes: a multiple of 16.
void DecodeTurned(const CodeRows& rows, const PageAngles& angles, const float* base, float* out);

}  // namespace kvring
