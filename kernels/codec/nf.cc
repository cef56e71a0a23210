// SPDX-License-Identifier: Apache-2.0
// nf4, nf3, nf2: quantiles of the normal distribution mapped onto a group's own range,
// x ~ (hi + lo) / 2 + (hi - lo) / 2 * number (kvquant 7.1).
#include "kernels/codec/nf_numbers.h"

#include "kernels/codec/codec_util.h"
#include "kernels/codec/grouped.h"

namespace kvring {

CodecMade MakeNf(const CodecRow& row, const CodecOptions& options) {
  CodecMade made;
  made.error = CheckOptions(row, options,
                            {.min_dim = 16, .max_dim = 512, .block_multiple = 16, .rope = true});
  if (!made.error.empty()) return made;
  Grid grid;
  grid.bits = row.bits;
  grid.kind = CodeKind::kTable;
  grid.numbers = NormalNumbers(row.bits);
  made.codec = MakeGroupedCodec(row, options, grid);
  return made;
}

}  // namespace kvring
