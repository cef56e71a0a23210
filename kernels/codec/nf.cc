// SPDX-License-Identifier: Apache-2.0
// nf4, nf3, nf2: quantiles of the normal distribution scaled to [-1, 1] with an exact 0 (Dettmers et al., "QLoRA", 2023),
// mapped onto a group's own range, x ~ (hi + lo) / 2 + (hi - lo) / 2 * number (kvquant 7.1). Tables from
// tests/golden/codec/tables.py.
#include "kernels/codec/codec_util.h"
#include "kernels/codec/grouped.h"

namespace kvring {
namespace {

constexpr std::array<float, 16> kNormal2 = {-1.0f, 0.0f, 0.435818165f, 1.0f};
constexpr std::array<float, 16> kNormal3 = {-1.0f,       -0.535022708f, -0.246931432f, 0.0f,
                                            0.18333748f, 0.381993954f,  0.622985742f,  1.0f};
constexpr std::array<float, 16> kNormal4 = {
    -1.0f,         -0.696192806f, -0.525072959f, -0.394917426f, -0.284441309f, -0.184773403f,
    -0.091049976f, 0.0f,          0.079580315f,  0.160930144f,  0.246112251f,  0.337915137f,
    0.440709732f,  0.562616888f,  0.722956644f,  1.0f};

}  // namespace

CodecMade MakeNf(const CodecRow& row, const CodecOptions& options) {
  CodecMade made;
  made.error = CheckOptions(row, options,
                            {.min_dim = 16, .max_dim = 512, .block_multiple = 16, .rope = true});
  if (!made.error.empty()) return made;
  Grid grid;
  grid.bits = row.bits;
  grid.kind = CodeKind::kTable;
  grid.numbers = row.bits == 4 ? kNormal4 : row.bits == 3 ? kNormal3 : kNormal2;
  made.codec = MakeGroupedCodec(row, options, grid);
  return made;
}

}  // namespace kvring
