// SPDX-License-Identifier: Apache-2.0
// A page's 64 slots in registers: sums in a fixed order, scale bytes, and the orders of bytes in which codes come apart.
// Included once per Highway target.
#if defined(KVRING_CPU_PACKED_REGISTERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRING_CPU_PACKED_REGISTERS_INL_H_
#undef KVRING_CPU_PACKED_REGISTERS_INL_H_
#else
#define KVRING_CPU_PACKED_REGISTERS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/attend_packed.h"
#include "kernels/cpu/exp2-inl.h"
#include "kernels/cpu/packed_dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

constexpr int kHalf = kPackedBlock / 2;
constexpr int kParts =
    kPackedBlock / static_cast<int>(hn::MaxLanes(F32()));  // registers of a page's slots
HWY_INLINE constexpr int64_t PartAt(int64_t part) {
  return part * static_cast<int64_t>(hn::MaxLanes(F32()));
}

template <class D>
HWY_INLINE float SumTree(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return SumTree(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    v = hn::Add(v, hn::Shuffle1032(v));
    return hn::GetLane(hn::Add(v, hn::Shuffle2301(v)));
  }
}

// Sum of 16 virtual lanes, lane i + lane i + 8 and so on: the order of SumLanes16, in registers.
HWY_INLINE float SumVirtual(const F32V* v) {
  constexpr size_t kRegisters = 16 / hn::MaxLanes(F32());
  if constexpr (kRegisters == 1) return SumTree(F32(), v[0]);
  if constexpr (kRegisters == 2) return SumTree(F32(), hn::Add(v[0], v[1]));
  return SumLanes16(v);
}

// Nearest integers of numbers that int32 can hold; on x86 without Highway's correction of those that it cannot.
HWY_INLINE I32V ToNearest(F32V x) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return I32V{_mm512_cvtps_epi32(x.raw)};
#elif HWY_TARGET == HWY_AVX2
  return I32V{_mm256_cvtps_epi32(x.raw)};
#else
  return hn::NearestInt(x);
#endif
}

// Numbers that int16 can hold.
HWY_INLINE void StoreHalfWords(I32V x, int16_t* to) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(x.raw));
#else
  const hn::Rebind<int16_t, I32> d16;
  hn::StoreU(hn::DemoteTo(d16, x), d16, to);
#endif
}

// Rows whose lanes are summed together, and the registers of a row's 16 lanes.
inline constexpr int kSumRows = 4;
inline constexpr int kSumRegisters = static_cast<int>(16 / hn::MaxLanes(F32()));

// By lanes, of four rows: sums of p, and the largest weights of each group.
template <int kGroups>
struct LaneSums {
  F32V p[kSumRows][kSumRegisters];
  F32V most[kGroups][kSumRows];

  void Clear(int64_t row, int groups) {
    for (F32V& v : p[row]) v = hn::Zero(F32());
    for (int g = 0; g < groups; ++g) most[g][row] = hn::Zero(F32());
  }
};

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
// Four registers to one number each by halves: lane i with lane i + 8, then i + 4, i + 2, i + 1.
template <class Join>
HWY_INLINE __m128 JoinLanes(__m512 a, __m512 b, __m512 c, __m512 d, const Join& join) {
  const __m512 ab = join(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  const __m512 cd = join(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
  __m512 x = join(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  x = join(x, _mm512_permute_ps(x, 0x4e));
  x = join(x, _mm512_permute_ps(x, 0xb1));
  const __m512i first = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
  return _mm512_castps512_ps128(_mm512_permutexvar_ps(first, x));
}

HWY_INLINE __m128 JoinedSums(const F32V (&p)[kSumRows][kSumRegisters]) {
  const auto add = [](__m512 x, __m512 y) HWY_ATTR { return _mm512_add_ps(x, y); };
  return JoinLanes(p[0][0].raw, p[1][0].raw, p[2][0].raw, p[3][0].raw, add);
}
#endif

HWY_INLINE void AddLanes(const F32V (&p)[kSumRows][kSumRegisters], float* sum) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  _mm_store_ps(sum, JoinedSums(p));
#else
  for (int r = 0; r < kSumRows; ++r) sum[r] = SumVirtual(p[r]);
#endif
}

// Bytes a unit of weight, and what a byte stands for with levels of `unit`: 255 bytes are the largest weight. Weights that
// are small beside the row's add nothing; and 255 over them would leave fp32's range.
HWY_INLINE void ByteSteps(const F32V (&most)[kSumRows], float unit, float* inverse, float* step) {
  alignas(16) float largest[kSumRows];
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const auto max = [](__m512 x, __m512 y) HWY_ATTR { return _mm512_max_ps(x, y); };
  _mm_store_ps(largest, JoinLanes(most[0].raw, most[1].raw, most[2].raw, most[3].raw, max));
#else
  for (int r = 0; r < kSumRows; ++r) largest[r] = hn::GetLane(hn::MaxOfLanes(F32(), most[r]));
#endif
  const hn::FixedTag<float, kSumRows> d;
  const auto x = hn::Load(d, largest), all = hn::Set(d, 255.0f);
  const auto any = hn::Ge(x, hn::Set(d, kLeastWeight));
  hn::Store(hn::IfThenElseZero(any, hn::Div(all, x)), d, inverse);
  hn::Store(hn::IfThenElseZero(any, hn::Mul(hn::Div(x, all), hn::Set(d, unit))), d, step);
}

// s[i] = 2^((e[i] - 112) / 8), 0 for e = 0: ScaleValue of kernels/codec/lloyd_max.h on registers.
HWY_INLINE void ScaleFloats(const uint8_t* e, F32V* s) {
  const F32 d;
  const I32 di;
  const hn::Rebind<uint8_t, F32> d8;
  constexpr float k = 0x1p-14f;
  alignas(64) static constexpr float kEighths[16] = {k,
                                                     1.09050773f * k,
                                                     1.18920712f * k,
                                                     1.29683955f * k,
                                                     1.41421356f * k,
                                                     1.54221083f * k,
                                                     1.68179283f * k,
                                                     1.83400809f * k,
                                                     k,
                                                     1.09050773f * k,
                                                     1.18920712f * k,
                                                     1.29683955f * k,
                                                     1.41421356f * k,
                                                     1.54221083f * k,
                                                     1.68179283f * k,
                                                     1.83400809f * k};
  for (int i = 0; i < kParts; ++i) {
    const auto byte = hn::PromoteTo(di, hn::LoadU(d8, e + i * hn::Lanes(d)));
    const auto eighth = hn::And(byte, hn::Set(di, 7));
    F32V mantissa;
    if constexpr (hn::MaxLanes(F32()) >= 8) {
      mantissa = hn::TableLookupLanes(hn::Load(d, kEighths), hn::IndicesFromVec(d, eighth));
    } else {
      mantissa = hn::GatherIndex(d, kEighths, eighth);
    }
    // 2^-14 is in the table; the byte's other bits are the exponent.
    const auto power = hn::ShiftLeft<20>(hn::Xor(byte, eighth));
    const auto scale = hn::Add(hn::BitCast(di, mantissa), power);
    s[i] = hn::BitCast(d, hn::IfThenElseZero(hn::Ne(byte, hn::Zero(di)), scale));
  }
}

// Bytes of 64 slots into the order in which codes come apart: at 4 bits even slots of eight before odd ones, at 2 bits
// every fourth of sixteen.
HWY_INLINE void StoreInOrder(int bits, const uint8_t* x, uint8_t* to, int64_t n) {
  alignas(16) static constexpr uint8_t kFour[16] = {0, 2,  4,  6,  1, 3,  5,  7,
                                                    8, 10, 12, 14, 9, 11, 13, 15};
  alignas(16) static constexpr uint8_t kTwo[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                   2, 6, 10, 14, 3, 7, 11, 15};
  const hn::FixedTag<uint8_t, 16> d;
  if (bits == 3 || bits == 8) {
    if (x != to) std::copy_n(x, n, to);
    return;
  }
  const auto order = hn::Load(d, bits == 4 ? kFour : kTwo);
  for (int64_t i = 0; i < n; i += 16)
    hn::StoreU(hn::TableLookupBytes(hn::LoadU(d, x + i), order), d, to + i);
}

#if KVRING_VNNI
// Where x86's packing of four registers of 16 numbers to one of 64 bytes leaves the byte that stands at each place in the
// order of StoreInOrder: 4 numbers of each register in turn, once in every 16 bytes.
struct PackedOrders {
  alignas(64) uint8_t at[3][kPackedBlock];  // in slot order, at 4 bits, at 2 bits
};
constexpr PackedOrders MakePackedOrders() {
  PackedOrders orders{};
  for (int i = 0; i < kPackedBlock; ++i) {
    const int four = i / 8 * 8 + i % 4 * 2 + i / 4 % 2, two = i / 16 * 16 + i % 4 * 4 + i / 4 % 4;
    const int slots[3] = {i, four, two};
    for (int k = 0; k < 3; ++k) {
      const int slot = slots[k];
      orders.at[k][i] = static_cast<uint8_t>(slot % 16 / 4 * 16 + slot / 16 * 4 + slot % 4);
    }
  }
  return orders;
}
constexpr PackedOrders kPackedOrders = MakePackedOrders();
HWY_INLINE const uint8_t* PackedOrder(int bits) {
  return kPackedOrders.at[bits == 4 ? 1 : bits == 2 ? 2 : 0];
}
#endif

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRING_CPU_PACKED_REGISTERS_INL_H_
