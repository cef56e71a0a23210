// SPDX-License-Identifier: Apache-2.0
// Codecs with a range per group: keys per channel over a page, values per (token, head); code -> offset + scale * number.
// `int` and `nf` differ in how a range and a number are found, given by a Grid.
//
// Page, B slots, b bits:
//   K part: codes u32 [WordRows(dk, b)][B] (rows are channels), scale Half [dk], offset Half [dk]
//   V part: codes u32 [WordRows(B, b)][dv] (rows are slots),    scale Half [B],  offset Half [B]
// Keys before RoPE unless post-rope. The first kGroupedSinks tokens of the sequence are read exact and do not widen ranges.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "kernels/codec.h"
#include "kernels/codec/bit_words.h"

namespace kvring {

inline constexpr int kGroupedSinks = 4;

// numbers: ascending, what the codes stand for. A group's range [lo, hi] is mapped onto [numbers.front(), numbers.back()].
struct Grid {
  int bits = 0;
  CodeKind kind = CodeKind::kInteger;
  std::array<float, 16> numbers{};
};

std::unique_ptr<Codec> MakeGroupedCodec(const CodecRow& row, const CodecOptions& options,
                                        const Grid& grid);

}  // namespace kvring
