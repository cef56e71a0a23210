// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/bit_words.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/bit_words.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvring {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using VU = hn::Vec<DU>;
using VI = hn::Vec<DI>;
using VF = hn::Vec<DF>;

// Code number kJ of a group of words, at bits 24.. of each lane, with foreign bits around it.
template <int kBits, int kJ>
HWY_INLINE VU TopByte(VU w0, VU w1, VU w2) {
  constexpr int kBit = kBits * kJ, kWord = kBit / 32, kOffset = kBit % 32;
  const VU low = kWord == 0 ? w0 : kWord == 1 ? w1 : w2;
  if constexpr (kOffset + kBits > 32) {
    const VU high = kWord == 0 ? w1 : w2;
    return hn::Or(hn::ShiftRight<kOffset - 24>(low), hn::ShiftLeft<56 - kOffset>(high));
  } else if constexpr (kOffset <= 24) {
    return hn::ShiftLeft<24 - kOffset>(low);
  } else {
    return hn::ShiftRight<kOffset - 24>(low);
  }
}

template <int kBits>
HWY_INLINE VU MaskTop(VU x) {
  return hn::And(x, hn::Set(DU(), ((1u << kBits) - 1u) << 24));
}

// The three ways from a code to a number.
template <int kBits>
struct Level {
  hn::Vec<hn::Repartition<uint8_t, DU>> table;
  explicit HWY_INLINE Level(const CodeMap& map)
      : table(hn::BitCast(hn::Repartition<uint8_t, DU>(),
                          hn::LoadDup128(hn::Repartition<int8_t, DU>(), map.level))) {}
  HWY_INLINE VF Number(VU top) const {
    if constexpr (kBits == 8)
      return hn::ConvertTo(DF(), hn::ShiftRight<24>(hn::BitCast(DI(), top)));
    const auto index = hn::BitCast(hn::Repartition<uint8_t, DU>(), MaskTop<kBits>(top));
    const auto level = hn::BitCast(DI(), hn::TableLookupBytes(table, index));
    return hn::ConvertTo(DF(), hn::ShiftRight<24>(level));
  }
};

template <int kBits>
struct Integer {
  explicit HWY_INLINE Integer(const CodeMap&) {}
  HWY_INLINE VF Number(VU top) const {
    return hn::ConvertTo(DF(), hn::BitCast(DI(), hn::ShiftRight<24>(MaskTop<kBits>(top))));
  }
};

// Tables that fit into one register or two are looked up there, several times as fast as gathered from memory.
template <int kBits>
struct Table {
  static constexpr int kCodes = 1 << kBits;
  // Registers of unknown length hold no table.
  static constexpr int kLanes = HWY_HAVE_SCALABLE ? 1 : static_cast<int>(hn::MaxLanes(DF()));
  const float* table;
  VF low, high;
  explicit HWY_INLINE Table(const CodeMap& map) : table(map.table) {
    alignas(64) float padded[32] = {};
    std::copy(table, table + std::min(kCodes, 16), padded);
    low = hn::Load(DF(), padded);
    high = hn::Load(DF(), padded + (kCodes > kLanes ? kLanes : 0));
  }
  HWY_INLINE VF Number(VU top) const {
    const VI index = hn::BitCast(DI(), hn::ShiftRight<24>(MaskTop<kBits>(top)));
    if constexpr (kCodes <= kLanes) {
      return hn::TableLookupLanes(low, hn::IndicesFromVec(DF(), index));
    } else if constexpr (kCodes <= 2 * kLanes) {
      const VI lane = hn::And(index, hn::Set(DI(), kLanes - 1));
      const auto indices = hn::IndicesFromVec(DF(), lane);
      const auto second = hn::RebindMask(DF(), hn::Ne(index, lane));
      return hn::IfThenElse(second, hn::TableLookupLanes(high, indices),
                            hn::TableLookupLanes(low, indices));
    } else {
      return hn::GatherIndex(DF(), table, index);
    }
  }
};

// Where numbers go: onto a tile by lane, or into it by row.
struct AddByLane {
  VF scale;
  float* out;
  int64_t stride;
  HWY_INLINE void operator()(int64_t row, VF number) const {
    float* const to = out + row * stride;
    hn::StoreU(hn::Add(hn::LoadU(DF(), to), hn::Mul(scale, number)), DF(), to);
  }
};

struct StoreByRow {
  const float* scale;
  const float* offset;
  float* out;
  int64_t stride;
  HWY_INLINE void operator()(int64_t row, VF number) const {
    const VF scaled = hn::Mul(hn::Set(DF(), scale[row]), number);
    hn::StoreU(hn::Add(hn::Set(DF(), offset[row]), scaled), DF(), out + row * stride);
  }
};

template <int kBits, int kJ, int kCodes, class Map, class Emit>
HWY_INLINE void EmitGroup(VU w0, VU w1, VU w2, int64_t row, int64_t rows, const Map& map,
                          const Emit& emit) {
  if constexpr (kJ < kCodes) {
    if (row + kJ >= rows) return;
    emit(row + kJ, map.Number(TopByte<kBits, kJ>(w0, w1, w2)));
    EmitGroup<kBits, kJ + 1, kCodes>(w0, w1, w2, row, rows, map, emit);
  }
}

// One strip of lanes, all rows.
template <int kBits, class Map, class Emit>
HWY_INLINE void WalkStrip(const uint32_t* words, int64_t stride, int64_t rows, const Map& map,
                          const Emit& emit) {
  constexpr int kWords = kBits == 3 ? 3 : 1;
  constexpr int kCodes = 32 * kWords / kBits;
  const DU du;
  int64_t left = (rows * kBits + 31) / 32;
  for (int64_t row = 0; row < rows; row += kCodes, words += kWords * stride, left -= kWords) {
    const VU w0 = hn::LoadU(du, words);
    const VU w1 = kWords > 1 && left > 1 ? hn::LoadU(du, words + stride) : w0;
    const VU w2 = kWords > 2 && left > 2 ? hn::LoadU(du, words + 2 * stride) : w0;
    EmitGroup<kBits, 0, kCodes>(w0, w1, w2, row, rows, map, emit);
  }
}

template <int kBits>
void AddLevelsBits(const uint32_t* words, int64_t rows, int64_t lanes, const int8_t* level,
                   const float* lane_scale, float* out) {
  CodeMap map;
  map.level = level;
  const Level<kBits> levels(map);
  for (int64_t l = 0; l < lanes; l += static_cast<int64_t>(hn::Lanes(DF()))) {
    const AddByLane emit{hn::LoadU(DF(), lane_scale + l), out + l, lanes};
    WalkStrip<kBits>(words + l, lanes, rows, levels, emit);
  }
}

template <int kBits, template <int> class Map>
void UnpackStrips(const CodeMap& map, const UnpackArgs& a) {
  const Map<kBits> numbers(map);
  const int64_t width = static_cast<int64_t>(hn::Lanes(DF()));
  const uint32_t* const words = reinterpret_cast<const uint32_t*>(a.words);
  for (int64_t l = 0; l < a.count; l += width) {
    const int64_t at =
        l + width <= a.count ? l : a.count - width;  // the last strip overlaps: writes are the same
    WalkStrip<kBits>(words + at, a.word_lanes, a.rows, numbers,
                     StoreByRow{a.scale, a.offset, a.out + at, a.out_stride});
  }
}

template <int kBits>
void UnpackBits(const CodeMap& map, const UnpackArgs& args) {
  if (kBits == 8 || map.kind == CodeKind::kLevel) return UnpackStrips<kBits, Level>(map, args);
  if (map.kind == CodeKind::kTable) return UnpackStrips<kBits, Table>(map, args);
  UnpackStrips<kBits, Integer>(map, args);
}

void AddLevelsTarget(const uint8_t* bytes, int bits, int64_t rows, int64_t lanes,
                     const int8_t* level, const float* lane_scale, float* out) {
  const uint32_t* const words = reinterpret_cast<const uint32_t*>(bytes);
  if (bits == 2) return AddLevelsBits<2>(words, rows, lanes, level, lane_scale, out);
  if (bits == 3) return AddLevelsBits<3>(words, rows, lanes, level, lane_scale, out);
  if (bits == 4) return AddLevelsBits<4>(words, rows, lanes, level, lane_scale, out);
  AddLevelsBits<8>(words, rows, lanes, level, lane_scale, out);
}

void UnpackRowsTarget(const CodeMap& map, const UnpackArgs& args) {
  if (args.bits == 2) return UnpackBits<2>(map, args);
  if (args.bits == 3) return UnpackBits<3>(map, args);
  if (args.bits == 4) return UnpackBits<4>(map, args);
  UnpackBits<8>(map, args);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvring
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {
namespace {

HWY_EXPORT(AddLevelsTarget);
HWY_EXPORT(UnpackRowsTarget);

uint32_t LoadWord(const uint8_t* at) {
  uint32_t word;
  std::memcpy(&word, at, 4);
  return word;
}

void StoreWord(uint32_t word, uint8_t* at) { std::memcpy(at, &word, 4); }

}  // namespace

void PackColumn(const uint8_t* codes, int64_t rows, int bits, int64_t lane, int64_t lanes,
                uint8_t* words) {
  uint64_t pending = 0;
  int held = 0;
  uint8_t* to = words + lane * 4;
  for (int64_t r = 0; r < rows; ++r) {
    pending |= static_cast<uint64_t>(codes[r]) << held;
    held += bits;
    if (held < 32) continue;
    StoreWord(static_cast<uint32_t>(pending), to);
    to += lanes * 4;
    pending >>= 32;
    held -= 32;
  }
  if (held > 0) StoreWord(static_cast<uint32_t>(pending), to);
}

void PackRow(const uint8_t* codes, int64_t lanes, int bits, int64_t row, uint8_t* words) {
  const int64_t bit = row * bits;
  const int offset = static_cast<int>(bit % 32);
  uint8_t* const low = words + bit / 32 * lanes * 4;
  const uint32_t mask = (1u << bits) - 1u;
  for (int64_t l = 0; l < lanes; ++l) {
    const uint32_t word =
        (LoadWord(low + l * 4) & ~(mask << offset)) | (static_cast<uint32_t>(codes[l]) << offset);
    StoreWord(word, low + l * 4);
  }
  if (offset + bits <= 32) return;
  uint8_t* const high = low + lanes * 4;
  const int done = 32 - offset;
  for (int64_t l = 0; l < lanes; ++l) {
    const uint32_t word =
        (LoadWord(high + l * 4) & ~(mask >> done)) | (static_cast<uint32_t>(codes[l]) >> done);
    StoreWord(word, high + l * 4);
  }
}

uint32_t CodeAt(const uint8_t* words, int64_t lanes, int bits, int64_t row, int64_t lane) {
  const int64_t bit = row * bits;
  const int offset = static_cast<int>(bit % 32);
  const uint8_t* const at = words + (bit / 32 * lanes + lane) * 4;
  uint64_t stream = LoadWord(at);
  if (offset + bits > 32) stream |= static_cast<uint64_t>(LoadWord(at + lanes * 4)) << 32;
  return static_cast<uint32_t>(stream >> offset) & ((1u << bits) - 1u);
}

void AddLevels(const uint8_t* words, int bits, int64_t rows, int64_t lanes, const int8_t* level,
               const float* lane_scale, float* out) {
  HWY_DYNAMIC_DISPATCH(AddLevelsTarget)(words, bits, rows, lanes, level, lane_scale, out);
}

void UnpackRows(const CodeMap& map, const UnpackArgs& args) {
  HWY_DYNAMIC_DISPATCH(UnpackRowsTarget)(map, args);
}

}  // namespace kvring
#endif  // HWY_ONCE
