// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/nuq_tile.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/nuq_tile.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/nuq_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

// Rows kJ and on of a group, kStrips registers of columns side by side: a row's table is loaded or made once for all of them.
template <int kBits, int kStrips, int kJ, class Tables>
HWY_INLINE void StoreGroup(const CodeGroup<kBits>* groups, const Tables& tables, int64_t row,
                           int64_t rows, int64_t stride, float* out) {
  if constexpr (kJ < CodeGroup<kBits>::kCodes) {
    if (row + kJ >= rows) return;
    const RowTable<kBits> table = tables.Row(row + kJ);
#pragma GCC unroll 4
    for (int i = 0; i < kStrips; ++i)
      hn::StoreU(table.Number(groups[i].template Code<kJ>()), DF(), out + kJ * stride + i * kLanes);
    StoreGroup<kBits, kStrips, kJ + 1>(groups, tables, row, rows, stride, out);
  }
}

template <int kBits, int kStrips, class Tables>
HWY_INLINE void DecodeColumns(NuqTileArgs a, int64_t at, const Tables& tables) {
  using Group = CodeGroup<kBits>;
  const uint32_t* words = reinterpret_cast<const uint32_t*>(a.words) + at;
  int64_t left = (a.rows * kBits + 31) / 32;
  for (int64_t row = 0; row < a.rows; row += Group::kCodes) {
    Group groups[kStrips];
#pragma GCC unroll 4
    for (int i = 0; i < kStrips; ++i) groups[i].Load(words + i * kLanes, a.lanes, left);
    StoreGroup<kBits, kStrips, 0>(groups, tables, row, a.rows, a.lanes, a.out + row * a.lanes + at);
    words += Group::kWords * a.lanes;
    left -= Group::kWords;
  }
}

// The last register of columns overlaps its neighbour where lanes do not fill it: the same numbers are written.
template <int kBits, class Tables>
HWY_INLINE void DecodeTile(const NuqTileArgs& a, const Tables& tables) {
  constexpr int kStrips = kLanes == 16 ? 4 : 2;
  int64_t at = 0;
  for (; at + kStrips * kLanes <= a.lanes; at += kStrips * kLanes)
    DecodeColumns<kBits, kStrips>(a, at, tables);
  for (; at < a.lanes; at += kLanes)
    DecodeColumns<kBits, 1>(a, std::min(at, a.lanes - kLanes), tables);
}

void DecodeByTables(const NuqTileArgs& args, const float* tables) {
  if (args.bits == 2) return DecodeTile<2>(args, KeptTables<2>{tables});
  if (args.bits == 3) return DecodeTile<3>(args, KeptTables<3>{tables});
  DecodeTile<4>(args, KeptTables<4>{tables});
}

template <int kBits>
void DecodeScaledRows(const NuqTileArgs& args, const NuqRowScales& scales) {
  // Words run down the rows: whatever the bits, a group of 64 begins with a word of its own.
  constexpr int64_t kRows = 64;
  float scale[kRows], offset[kRows];
  NuqTileArgs part = args;
  for (int64_t first = 0; first < args.rows; first += kRows) {
    part.rows = std::min(kRows, args.rows - first);
    WidenHalves(scales.scale + first, part.rows, scale);
    WidenHalves(scales.offset + first, part.rows, offset);
    DecodeTile<kBits>(part, ScaledTables<kBits>(scales.table, scale, offset));
    part.words += kRows * kBits / 32 * 4 * args.lanes;
    part.out += kRows * args.lanes;
  }
}

void DecodeByScales(const NuqTileArgs& args, const NuqRowScales& scales) {
  if (args.bits == 2) return DecodeScaledRows<2>(args, scales);
  if (args.bits == 3) return DecodeScaledRows<3>(args, scales);
  DecodeScaledRows<4>(args, scales);
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(DecodeByTables);
HWY_EXPORT(DecodeByScales);

void RepeatNuqTable(const float* numbers, int bits, float* table) {
  for (int i = 0; i < kNuqTable; ++i) table[i] = numbers[i & ((1 << bits) - 1)];
}

void DecodeNuqRows(const NuqTileArgs& args, const float* tables) {
  HWY_DYNAMIC_DISPATCH(DecodeByTables)(args, tables);
}

void DecodeNuqRows(const NuqTileArgs& args, const NuqRowScales& scales) {
  HWY_DYNAMIC_DISPATCH(DecodeByScales)(args, scales);
}

}  // namespace kvring
#endif  // HWY_ONCE
