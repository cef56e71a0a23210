// SPDX-License-Identifier: Apache-2.0
// int4, int3, int2: uniform codes with a float zero point, x ~ lo + scale * code, scale = (hi - lo) / (2^b - 1)
// (kvquant 7.1). A constant group comes back exactly.
#include "kernels/codec/codec_util.h"
#include "kernels/codec/grouped.h"

namespace kvring {

CodecMade MakeInt(const CodecRow& row, const CodecOptions& options) {
  CodecMade made;
  made.error = CheckOptions(row, options,
                            {.min_dim = 16, .max_dim = 512, .block_multiple = 16, .rope = true});
  if (!made.error.empty()) return made;
  Grid grid;
  grid.bits = row.bits;
  for (int code = 0; code < 1 << row.bits; ++code) grid.numbers[code] = static_cast<float>(code);
  made.codec = MakeGroupedCodec(row, options, grid);
  return made;
}

}  // namespace kvring
