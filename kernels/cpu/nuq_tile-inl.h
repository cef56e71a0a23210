// SPDX-License-Identifier: Apache-2.0
// A page's codes apart, and the tables that turn them into numbers, a register at a time. Included once per Highway target.
#if defined(KVRING_CPU_NUQ_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRING_CPU_NUQ_TILE_INL_H_
#undef KVRING_CPU_NUQ_TILE_INL_H_
#else
#define KVRING_CPU_NUQ_TILE_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/nuq_tile.h"
#include "kernels/half.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;

inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
// Look-ups in registers of 256 and 512 bits read the low bits of an index alone (Highway's checks do not know that).
inline constexpr bool kIndexWraps = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !HWY_IS_DEBUG_BUILD;

// Words of one register of columns: codes of 8 rows at 4 bits, of 16 at 2, of 32 in three words at 3.
template <int kBits>
struct CodeGroup {
  static constexpr int kWords = kBits == 3 ? 3 : 1;
  static constexpr int kCodes = 32 * kWords / kBits;
  VU w[kWords];

  // `left`: rows of words from here on.
  HWY_INLINE void Load(const uint32_t* words, int64_t stride, int64_t left) {
    w[0] = hn::LoadU(DU(), words);
    if constexpr (kWords > 1) {
      w[1] = left > 1 ? hn::LoadU(DU(), words + stride) : w[0];
      w[2] = left > 2 ? hn::LoadU(DU(), words + 2 * stride) : w[0];
    }
  }

  // Code kJ in the low bits, others above it.
  template <int kJ>
  HWY_INLINE VU Code() const {
    constexpr int kWord = kBits * kJ / 32, kOffset = kBits * kJ % 32;
    const VU low = kOffset == 0 ? w[kWord] : hn::ShiftRight<kOffset>(w[kWord]);
    if constexpr (kOffset + kBits > 32) {
      return hn::Or(low, hn::ShiftLeft<32 - kOffset>(w[kWord + 1]));
    } else {
      return low;
    }
  }
};

// What the codes of one row stand for: in one register, in two, or in memory.
template <int kBits>
struct RowTable {
  static constexpr int kCodes = 1 << kBits;
  static constexpr bool kOne = kCodes <= kLanes, kTwo = !kOne && kCodes <= 2 * kLanes;
  VF low, high;
  const float* memory;

  HWY_INLINE VF Number(VU code) const {
    constexpr int kMask = kOne ? kCodes - 1 : kTwo ? kLanes - 1 : kCodes - 1;
    const auto index = hn::BitCast(
        DI(), kIndexWraps && (kOne || kTwo) ? code : hn::And(code, hn::Set(DU(), kMask)));
    if constexpr (kOne) {
      return hn::TableLookupLanes(low, hn::IndicesFromVec(DF(), index));
    } else if constexpr (kTwo) {
      const auto indices = hn::IndicesFromVec(DF(), index);
      const VF first = hn::TableLookupLanes(low, indices);
      const VF second = hn::TableLookupLanes(high, indices);
      if constexpr (kIndexWraps)  // the code's highest bit as a sign
        return hn::IfNegativeThenElse(hn::BitCast(DF(), hn::ShiftLeft<32 - kBits>(code)), second,
                                      first);
      const VU top = hn::And(code, hn::Set(DU(), kCodes / 2));
      return hn::IfThenElse(hn::RebindMask(DF(), hn::Eq(top, hn::Zero(DU()))), first, second);
    } else {
      return hn::GatherIndex(DF(), memory, index);
    }
  }
};

// Tables that lie ready: [rows][kNuqTable].
template <int kBits>
struct KeptTables {
  const float* tables;
  HWY_INLINE RowTable<kBits> Row(int64_t row) const {
    const float* const at = tables + row * kNuqTable;
    return {hn::LoadU(DF(), at), hn::LoadU(DF(), at + (RowTable<kBits>::kTwo ? kLanes : 0)), at};
  }
};

// Tables made row by row from the one of the layer. Product and sum are apart: the bits of the plain form.
template <int kBits>
struct ScaledTables {
  using Table = RowTable<kBits>;
  const float *table, *scale, *offset;
  VF low, high;
  mutable float made[Table::kOne || Table::kTwo ? 1 : kNuqTable];

  HWY_INLINE ScaledTables(const float* numbers, const float* scales, const float* offsets)
      : table(numbers),
        scale(scales),
        offset(offsets),
        low(hn::LoadU(DF(), table)),
        high(hn::LoadU(DF(), table + (Table::kTwo ? kLanes : 0))) {}

  HWY_INLINE Table Row(int64_t row) const {
    const VF s = hn::Set(DF(), scale[row]), z = hn::Set(DF(), offset[row]);
    const VF first = hn::Add(z, hn::Mul(s, low));
    if constexpr (Table::kOne) return {first, first, nullptr};
    if constexpr (Table::kTwo) return {first, hn::Add(z, hn::Mul(s, high)), nullptr};
    if constexpr (!Table::kOne && !Table::kTwo) {
      for (int i = 0; i < Table::kCodes; i += kLanes)
        hn::StoreU(hn::Add(z, hn::Mul(s, hn::LoadU(DF(), table + i))), DF(), made + i);
    }
    return {first, first, made};
  }
};

// to[i] = from[i] for n finite halves, in whole registers where they fit.
HWY_INLINE void WidenHalves(const Half* from, int64_t n, float* to) {
  const hn::Rebind<uint16_t, DF> d16;
  const hn::Rebind<hwy::float16_t, DF> half;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::PromoteTo(DF(), hn::BitCast(half, hn::LoadU(d16, from + i))), DF(), to + i);
  for (; i < n; ++i) to[i] = HalfToFloat(from[i]);
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRING_CPU_NUQ_TILE_INL_H_
