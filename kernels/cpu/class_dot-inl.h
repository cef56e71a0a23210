// SPDX-License-Identifier: Apache-2.0
// Exact int32 sums with the codes of classes: 8 coefficients at 0..6 bits in planes (kernels/codec/tc_planes.h). With VNNI
// codes are taken apart in registers for up to four rows at a time; elsewhere, and for many rows, they become levels first.
// Included once per Highway target.
//
// An element of a plane holds eight codes: k = 0 and 1 give the codes k, k + 2, k + 4, k + 6 as the bytes of a lane.
#if defined(KVRING_CPU_CLASS_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRING_CPU_CLASS_DOT_INL_H_
#undef KVRING_CPU_CLASS_DOT_INL_H_
#else
#define KVRING_CPU_CLASS_DOT_INL_H_
#endif

#include <cstdint>
#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/attend_packed.h"
#include "kernels/cpu/packed_dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

// Words of some elements of each plane that a class of kBits has, one element a lane, and the levels of their codes.
template <int kBits>
class ClassCodes {
 public:
  // at: the first element, of 64.
  HWY_INLINE ClassCodes(const uint8_t* planes, int64_t at) {
    const U32 d;
    four_ = two_ = one_ = hn::Zero(d);
    if constexpr ((kBits & 4) != 0) {
      four_ = hn::LoadU(d, reinterpret_cast<const uint32_t*>(planes) + at);
      planes += 4 * kPackedBlock;
    }
    if constexpr ((kBits & 2) != 0) {
      const hn::Rebind<uint16_t, U32> d16;
      two_ = hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(planes) + at));
      planes += 2 * kPackedBlock;
    }
    if constexpr ((kBits & 1) != 0) {
      const hn::Rebind<uint8_t, U32> d8;
      one_ = hn::PromoteTo(d, hn::LoadU(d8, planes + at));
    }
  }

#if KVRING_VNNI
  // The table's 64 levels; flip: with the sign bit turned, for codes that are a product's operand without sign.
  static HWY_INLINE U32V Table(const int8_t* level, uint32_t flip) {
    const U32 d;
    return hn::Xor(hn::Load(d, reinterpret_cast<const uint32_t*>(level)), hn::Set(d, flip));
  }

  // Six bits of each byte choose; tables repeat, so that foreign bits above a code do no harm.
  template <int k>
  HWY_INLINE U32V Get(U32V table) const {
    return U32V{_mm512_permutexvar_epi8(Index<k>().raw, table.raw)};
  }

 private:
  template <int k>
  HWY_INLINE U32V Index() const {
    // Where the codes begin in a plane of 2 and of 1 bit: kTwoAt, kOneAt of tc_planes.h at k, k + 2, k + 4, k + 6.
    constexpr uint32_t kTwo = k == 0 ? 0x0c040800u : 0x0e060a02u;
    constexpr uint32_t kOne = k == 0 ? 0x03020100u : 0x07060504u;
    if constexpr (kBits == 1) return Fields<kOne, 0>(one_);
    if constexpr (kBits == 2) return Fields<kTwo, 0>(two_);
    if constexpr (kBits == 3) return Join<3>(Fields<kTwo, 0>(two_), Fields<kOne, 2>(one_));
    const U32V four = hn::ShiftRight<4 * k>(four_);
    if constexpr (kBits == 5) return Join<15>(four, Fields<kOne, 4>(one_));
    if constexpr (kBits == 6) return Join<15>(four, Fields<kTwo, 4>(two_));
    return four;
  }

  // Byte j of a lane: its bits from kAt's byte j on, moved up by kUp (fields wrap within two lanes).
  template <uint32_t kAt, uint32_t kUp>
  static HWY_INLINE U32V Fields(U32V x) {
    constexpr uint32_t kLow = (kAt + 0x40404040u - kUp * 0x01010101u) & 0x3f3f3f3fu;
    constexpr uint64_t kHigh = (kLow + 0x20202020u) & 0x3f3f3f3fu;
    return U32V{_mm512_multishift_epi64_epi8(
        _mm512_set1_epi64(static_cast<int64_t>(kLow | kHigh << 32)), x.raw)};
  }

  // Bits of kMask of the first, the others of the second.
  template <uint32_t kMask>
  static HWY_INLINE U32V Join(U32V low, U32V high) {
    const __m512i mask = _mm512_set1_epi8(static_cast<char>(kMask));
    return U32V{_mm512_ternarylogic_epi32(low.raw, high.raw, mask, 0xe4)};
  }
#else
  static HWY_INLINE const int8_t* Table(const int8_t* level, uint32_t) { return level; }

  template <int k>
  HWY_INLINE U32V Get(const int8_t* level) const {
    const auto bytes = hn::BitCast(U8(), Low<k>());
    auto levels = Look(level, bytes);
    if constexpr (kBits > 4) {  // a table of 16 levels for each number that the upper bits can be
      const auto upper = hn::BitCast(U8(), kBits == 5 ? Ones<k>() : Twos<k>());
      for (int part = 1; part < 1 << (kBits - 4); ++part) {
        const auto here = hn::Eq(upper, hn::Set(U8(), static_cast<uint8_t>(part)));
        levels = hn::IfThenElse(here, Look(level + 16 * part, bytes), levels);
      }
    }
    return hn::BitCast(U32(), levels);
  }

 private:
  static HWY_INLINE hn::Vec<U8> Look(const int8_t* level, hn::Vec<U8> index) {
    const auto table = hn::BitCast(U8(), hn::LoadDup128(hn::Repartition<int8_t, U32>(), level));
    return hn::TableLookupBytes(table, index);
  }
  template <int k>
  HWY_INLINE U32V Low() const {
    const U32 d;
    if constexpr (kBits == 1) return Ones<k>();
    if constexpr (kBits == 2) return Twos<k>();
    if constexpr (kBits == 3) return hn::Or(Twos<k>(), hn::ShiftLeft<2>(Ones<k>()));
    return hn::And(hn::ShiftRight<4 * k>(four_), hn::Set(d, 0x0f0f0f0fu));
  }
  template <int k>
  HWY_INLINE U32V Twos() const {
    const U32V spread = hn::Or(two_, hn::ShiftLeft<12>(two_));
    return hn::And(hn::ShiftRight<2 * k>(spread), hn::Set(U32(), 0x03030303u));
  }
  template <int k>
  HWY_INLINE U32V Ones() const {
    const U32V spread = hn::Or(hn::Or(one_, hn::ShiftLeft<7>(one_)),
                               hn::Or(hn::ShiftLeft<14>(one_), hn::ShiftLeft<21>(one_)));
    return hn::And(hn::ShiftRight<4 * k>(spread), hn::Set(U32(), 0x01010101u));
  }
#endif

 private:
  U32V four_, two_, one_;
};

// Calls body.template operator()<bits>() for classes that have bits.
template <class Body>
HWY_INLINE void WithBits(int bits, const Body& body) {
  switch (bits) {
    case 1:
      return body.template operator()<1>();
    case 2:
      return body.template operator()<2>();
    case 3:
      return body.template operator()<3>();
    case 4:
      return body.template operator()<4>();
    case 5:
      return body.template operator()<5>();
    case 6:
      return body.template operator()<6>();
    default:
      return;
  }
}

// The classes [begin, end) of a side, whose planes begin at `planes`.
struct ClassArgs {
  const uint8_t* bits = nullptr;  // of every class of the side
  int begin = 0, end = 0;
  const uint8_t* planes = nullptr;
  int64_t next = 0;  // bytes from a plane to one that is needed soon
  const ClassLevels* levels = nullptr;
};

HWY_INLINE int64_t PlaneBytes(int bits) { return int64_t{bits} * kPackedBlock; }

// One line for each that is read here.
HWY_INLINE void FetchClass(const uint8_t* planes, int bits, int64_t next) {
  for (int64_t i = 0; i < PlaneBytes(bits); i += 64) FetchAhead(planes + i + next);
}

#if KVRING_VNNI
HWY_INLINE I32V AddProducts(I32V sum, U32V codes, U32V bytes) {
  return I32V{_mm512_dpbusd_epi32(sum.raw, codes.raw, bytes.raw)};
}

// Sums of a key's slots in registers: [R][4]. Places in arrays are written out (packs, no loops), so that the compiler keeps
// all sums in registers across classes of unlike widths.
inline constexpr int kKeyVectors = kPackedBlock / 16;
template <int R>
using KeySums = I32V[R * kKeyVectors];

template <int kBits, int R, int v, size_t... r>
HWY_INLINE void AddKeySlots(const uint8_t* planes, U32V table, const uint32_t* a, int64_t lda,
                            KeySums<R>& sum, std::index_sequence<r...>) {
  const ClassCodes<kBits> codes(planes, 16 * v);
  const U32V even = codes.template Get<0>(table), odd = codes.template Get<1>(table);
  ((sum[r * kKeyVectors + v] =
        AddProducts(AddProducts(sum[r * kKeyVectors + v], even, hn::Set(U32(), a[r * lda])), odd,
                    hn::Set(U32(), a[r * lda + 1]))),
   ...);
}

// a: [R][lda] two words a class, this one's first.
template <int kBits, int R>
HWY_INLINE void AddKeyClass(const uint8_t* planes, const ClassLevels& levels, const uint32_t* a,
                            int64_t lda, KeySums<R>& sum) {
  const U32V table = ClassCodes<kBits>::Table(levels.level[kBits], 0x80808080u);
  constexpr std::make_index_sequence<R> kRows;
  AddKeySlots<kBits, R, 0>(planes, table, a, lda, sum, kRows);
  AddKeySlots<kBits, R, 1>(planes, table, a, lda, sum, kRows);
  AddKeySlots<kBits, R, 2>(planes, table, a, lda, sum, kRows);
  AddKeySlots<kBits, R, 3>(planes, table, a, lda, sum, kRows);
}

template <int R, size_t... i>
HWY_INLINE void StartKeys(const int32_t* q_sum, KeySums<R>& sum, std::index_sequence<i...>) {
  ((sum[i] = hn::Set(I32(), -q_sum[i / kKeyVectors])), ...);
}

template <int R, size_t... i>
HWY_INLINE void StoreKeys(const KeySums<R>& sum, int32_t* out, int64_t ldo,
                          std::index_sequence<i...>) {
  (hn::StoreU(sum[i], I32(), out + i / kKeyVectors * ldo + i % kKeyVectors * 16), ...);
}

// out [R][ldo]: 64 sums of the classes' levels with a [R][lda], from -q_sum on.
template <int R>
HWY_NOINLINE void ClassKeyDot(const ClassArgs& t, const uint32_t* a, int64_t lda,
                              const int32_t* q_sum, int32_t* out, int64_t ldo) {
  constexpr std::make_index_sequence<R * kKeyVectors> kAll;
  const ClassLevels& levels = *t.levels;
  KeySums<R> sum;
  StartKeys<R>(q_sum, sum, kAll);
  const uint8_t* planes = t.planes;
  a += 2 * t.begin;
  for (int c = t.begin; c < t.end; ++c, a += 2) {
    const int bits = t.bits[c];
    FetchClass(planes, bits, t.next);
    switch (bits) {
      case 1:
        AddKeyClass<1, R>(planes, levels, a, lda, sum);
        break;
      case 2:
        AddKeyClass<2, R>(planes, levels, a, lda, sum);
        break;
      case 3:
        AddKeyClass<3, R>(planes, levels, a, lda, sum);
        break;
      case 4:
        AddKeyClass<4, R>(planes, levels, a, lda, sum);
        break;
      case 5:
        AddKeyClass<5, R>(planes, levels, a, lda, sum);
        break;
      case 6:
        AddKeyClass<6, R>(planes, levels, a, lda, sum);
        break;
      default:
        break;
    }
    planes += PlaneBytes(bits);
  }
  StoreKeys<R>(sum, out, ldo, kAll);
}

// Sums of one class over the slots of a page: pairs [R][stride] of [8][16] weights as ClassPairs makes them, out [R][ldo] of
// 8 sums.
template <int kBits, int R>
HWY_INLINE void ValueClass(const uint8_t* planes, const ClassLevels& levels, const uint32_t* pairs,
                           int64_t stride, int32_t* out, int64_t ldo) {
  const U32 d;
  const U32V table = ClassCodes<kBits>::Table(levels.level[kBits], 0);
  I32V sum[R][2];
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = hn::Zero(I32());
#pragma GCC unroll 4
  for (int j = 0; j < kPackedBlock / 16; ++j) {
    const ClassCodes<kBits> codes(planes, 16 * j);
    const U32V even = codes.template Get<0>(table), odd = codes.template Get<1>(table);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const uint32_t* const at = pairs + r * stride + 32 * j;
      sum[r][0].raw = _mm512_dpbusd_epi32(sum[r][0].raw, hn::Load(d, at).raw, even.raw);
      sum[r][1].raw = _mm512_dpbusd_epi32(sum[r][1].raw, hn::Load(d, at + 16).raw, odd.raw);
    }
  }
  const hn::Half<I32> half;
  for (int r = 0; r < R; ++r) {
    const I32V both = hn::Add(sum[r][0], sum[r][1]);
    hn::StoreU(hn::Add(hn::LowerHalf(half, both), hn::UpperHalf(half, both)), half, out + r * ldo);
  }
}

// weights: 64 bytes in the order of 4-bit codes, a word for each eight slots and parity. to [4][2][16]: of 16 slots and parity,
// the word of the first eight slots in lanes 0..7, that of the others in lanes 8..15.
HWY_INLINE void ClassPairs(const uint8_t* weights, uint32_t* to) {
  const __m512i words = _mm512_loadu_si512(weights);
  const __m512i upper = _mm512_set_epi32(2, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0);
  for (int i = 0; i < 8; ++i) {
    const __m512i at = _mm512_add_epi32(upper, _mm512_set1_epi32(i / 2 * 4 + i % 2));
    _mm512_store_si512(to + 16 * i, _mm512_permutexvar_epi32(at, words));
  }
}

// out [R][ldo]: 8 sums of each class in [t.begin, t.end), at 8 times its number.
template <int R>
HWY_NOINLINE void ClassValueDot(const ClassArgs& t, const uint32_t* pairs, int64_t stride,
                                int32_t* out, int64_t ldo) {
  const uint8_t* planes = t.planes;
  for (int c = t.begin; c < t.end; ++c) {
    const int bits = t.bits[c];
    int32_t* const to = out + c * kPackedClass;
    FetchClass(planes, bits, t.next);
    if (bits == 0) {
      for (int r = 0; r < R; ++r) std::fill_n(to + r * ldo, kPackedClass, 0);
    }
    WithBits(bits, [&]<int kBits>() HWY_ATTR {
      ValueClass<kBits, R>(planes, *t.levels, pairs, stride, to, ldo);
    });
    planes += PlaneBytes(bits);
  }
}
#endif

// to: [2 (end - begin)][64] levels of keys, four a word, as Dot<DotKind::kQuery, kReady> reads them.
HWY_INLINE void UnpackKeyClasses(const ClassArgs& t, uint32_t* to) {
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(U32()));
  const U32 d;
  const uint8_t* planes = t.planes;
  for (int c = t.begin; c < t.end; ++c, to += 2 * kPackedBlock) {
    const int bits = t.bits[c];
    FetchClass(planes, bits, t.next);
    if (bits == 0) std::fill_n(to, 2 * kPackedBlock, KVRING_VNNI ? 0x80808080u : 0u);
    WithBits(bits, [&]<int kBits>() HWY_ATTR {
      const auto table = ClassCodes<kBits>::Table(t.levels->level[kBits], 0x80808080u);
      for (int64_t i = 0; i < kPackedBlock; i += kLanes) {
        const ClassCodes<kBits> codes(planes, i);
        hn::StoreU(codes.template Get<0>(table), d, to + i);
        hn::StoreU(codes.template Get<1>(table), d, to + kPackedBlock + i);
      }
    });
    planes += PlaneBytes(bits);
  }
}

// A register of elements: eight lanes of coefficients for each eight slots. to: the class's column in rows of `stride`.
HWY_INLINE void StoreElements(U32V x, int64_t element, int k, int64_t stride, uint32_t* to) {
  const auto at = [&](int64_t e) { return to + (e / 8 * 2 + k) * stride + e % 8; };
  if constexpr (hn::MaxLanes(U32()) <= 8) {
    hn::StoreU(x, U32(), at(element));
  } else {
    const hn::Half<U32> half;
    hn::StoreU(hn::LowerHalf(half, x), half, at(element));
    hn::StoreU(hn::UpperHalf(half, x), half, at(element + 8));
  }
}

// to: [16][stride] levels of values, four slots a word, as Dot<DotKind::kWeight, kReady> reads them.
HWY_INLINE void UnpackValueClasses(const ClassArgs& t, int64_t stride, uint32_t* to) {
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(U32()));
  const uint8_t* planes = t.planes;
  for (int c = t.begin; c < t.end; ++c) {
    const int bits = t.bits[c];
    uint32_t* const column = to + c * kPackedClass;
    FetchClass(planes, bits, t.next);
    if (bits == 0) {
      for (int row = 0; row < kPackedBlock / 4; ++row)
        std::fill_n(column + row * stride, kPackedClass, 0u);
    }
    WithBits(bits, [&]<int kBits>() HWY_ATTR {
      const auto table = ClassCodes<kBits>::Table(t.levels->level[kBits], 0);
      for (int64_t i = 0; i < kPackedBlock; i += kLanes) {
        const ClassCodes<kBits> codes(planes, i);
        StoreElements(codes.template Get<0>(table), i, 0, stride, column);
        StoreElements(codes.template Get<1>(table), i, 1, stride, column);
      }
    });
    planes += PlaneBytes(bits);
  }
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRING_CPU_CLASS_DOT_INL_H_
