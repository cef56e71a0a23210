// SPDX-License-Identifier: Apache-2.0
// Exact int32 sums of small integers, 16 lanes by 4 bytes a step. Included once per Highway target; raw instructions where
// Highway 1.0.3 has none (VNNI dot products, bit fields at any place), chosen by the same table.
#if defined(KVRING_CPU_PACKED_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRING_CPU_PACKED_DOT_INL_H_
#undef KVRING_CPU_PACKED_DOT_INL_H_
#else
#define KVRING_CPU_PACKED_DOT_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/exp2-inl.h"

// Highway 1.0.3 names another feature than the instruction set has: AVX512_VNNI, with 512-bit registers.
#undef KVRING_VNNI
#if HWY_TARGET == HWY_AVX3_DL
#define KVRING_VNNI 1
#undef HWY_TARGET_STR
#define HWY_TARGET_STR                                                       \
  HWY_TARGET_STR_AVX3                                                        \
  ",vpclmulqdq,avx512vbmi,avx512vbmi2,vaes,avxvnni,avx512vnni,avx512bitalg," \
  "avx512vpopcntdq"
#else
#define KVRING_VNNI 0
#endif

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U8 = hn::Repartition<uint8_t, U32>;
using I16 = hn::Repartition<int16_t, U32>;
using U16 = hn::Repartition<uint16_t, U32>;
using I32V = hn::Vec<I32>;
using U32V = hn::Vec<U32>;

// kQuery: int8 rows by codes; kWeight: uint8 rows by codes; kBias: pairs of int16.
enum class DotKind { kQuery, kWeight, kBias };

// Where four codes of a lane come from: 2, 3, 4, 8 bits of a page's words, or levels that were unpacked before.
inline constexpr int kReady = 0;
// kBias: the lanes that `a` belongs to; `b` has the others.
inline constexpr int64_t kBiasLanes = 32;

struct DotArgs {
  const uint32_t* words = nullptr;  // rows of `stride` lanes
  int64_t stride = 0;
  int64_t next = 0;               // bytes from a word to one that is needed soon
  int groups = 0;                 // of four codes (kBias: of two numbers)
  const int8_t* level = nullptr;  // [16]
  const uint32_t* a = nullptr;    // [rows][lda], one group an element
  const uint32_t* b =
      nullptr;  // kBias: what the second half of the lanes is multiplied by, likewise
  int64_t lda = 0;
  const int32_t* q_sum = nullptr;  // [rows], kQuery: PackedQueries::q_sum
  int32_t* out = nullptr;          // [rows][ldo]
  int64_t ldo = 0;
  // kWeight, not null: o [rows][ldo] += step [rows] times the sums, and `out` stays as it is.
  const float* step = nullptr;
  float* o = nullptr;
};

template <int kBits>
constexpr int WordGroups() {  // groups in a word (3 bits: in each of the four parts of three words)
  return kBits == 4 || kBits == 3 ? 2 : kBits == 2 ? 4 : 1;
}

// Codes of part kPart as a word of its own: bits 24 kPart to 24 kPart + 23 of three words at 3 bits.
template <int kBits, int kPart>
HWY_INLINE U32V LoadPart(const uint32_t* at, int64_t stride) {
  const U32 d;
  if constexpr (kBits != 3 || kPart == 0) {
    return hn::LoadU(d, at);
  } else if constexpr (kPart == 3) {
    return hn::ShiftRight<8>(hn::LoadU(d, at + 2 * stride));
  } else {
    const U32V low = hn::LoadU(d, at + (kPart - 1) * stride),
               high = hn::LoadU(d, at + kPart * stride);
    return hn::Or(hn::ShiftRight<32 - 8 * kPart>(low), hn::ShiftLeft<8 * kPart>(high));
  }
}

// Stays in its register: the compiler would load words once more for each row that they meet, and loads would be what binds.
HWY_INLINE void Keep([[maybe_unused]] U32V& x) {
#if KVRING_VNNI
  asm("" : "+v"(x.raw));
#endif
}

// Into the first-level cache. Where requests are for the second level alone, Zen 5 took up to twice as long at some addresses of
// pages and not at others; why is not known.
HWY_INLINE void FetchAhead(const void* line) { __builtin_prefetch(line, 0, 3); }

// From the bits of a word to the bytes that are multiplied.
template <DotKind kKind, int kBits>
class Levels {
 public:
  explicit HWY_INLINE Levels(const int8_t* level) {
    if constexpr (kBits != kReady && kBits != 8) {
      table_ = hn::BitCast(U8(), hn::LoadDup128(hn::Repartition<int8_t, U32>(), level));
#if KVRING_VNNI
      // The first operand of vpdpbusd has no sign.
      if constexpr (kKind == DotKind::kQuery) table_ = hn::Xor(table_, hn::Set(U8(), 0x80));
#endif
    }
  }

  // Levels of codes 4 kGroup .. 4 kGroup + 3 of the part.
  template <int kGroup>
  HWY_INLINE U32V Get(U32V x) const {
    const U32 d;
    if constexpr (kBits == kReady) return x;
    if constexpr (kBits == 8) {
      return KVRING_VNNI && kKind == DotKind::kQuery ? hn::Xor(x, hn::Set(d, 0x80808080u)) : x;
    }
#if KVRING_VNNI
    // Six bits of each byte choose; the table repeats, so that foreign bits above the code do no harm.
    return U32V{_mm512_permutexvar_epi8(Fields<kGroup>(x).raw, table_.raw)};
#else
    return hn::BitCast(d, hn::TableLookupBytes(table_, hn::BitCast(U8(), Fields<kGroup>(x))));
#endif
  }

 private:
#if KVRING_VNNI
  template <int kGroup>
  static HWY_INLINE U32V Fields(U32V x) {
    if constexpr (kBits == 3) {
      constexpr uint64_t kAt = kGroup == 0 ? 0x09060300u : 0x15120f0cu;
      return U32V{_mm512_multishift_epi64_epi8(
          _mm512_set1_epi64(static_cast<int64_t>(kAt | (kAt + 0x20202020u) << 32)), x.raw)};
    } else {
      return hn::ShiftRight<kBits * kGroup>(x);
    }
  }
#else
  template <int kGroup>
  static HWY_INLINE U32V Fields(U32V x) {
    const U32 d;
    if constexpr (kBits == 3) {
      const U32V y = hn::ShiftRight<12 * kGroup>(x);
      const U32V low =
          hn::Or(hn::And(y, hn::Set(d, 0x7u)), hn::And(hn::ShiftLeft<5>(y), hn::Set(d, 0x700u)));
      const U32V high = hn::Or(hn::And(hn::ShiftLeft<10>(y), hn::Set(d, 0x70000u)),
                               hn::And(hn::ShiftLeft<15>(y), hn::Set(d, 0x7000000u)));
      return hn::Or(low, high);
    } else {
      constexpr uint32_t kMask = ((1u << kBits) - 1u) * 0x01010101u;
      return hn::And(hn::ShiftRight<kBits * kGroup>(x), hn::Set(d, kMask));
    }
  }
#endif

  hn::Vec<U8> table_;
};

#if KVRING_VNNI
template <DotKind>
struct Operand {
  U32V x;
  explicit HWY_INLINE Operand(U32V v, bool) : x(v) {}
};

template <DotKind kKind>
HWY_INLINE I32V MultiplyAdd(I32V sum, const Operand<kKind>& code, const Operand<kKind>& a) {
  if constexpr (kKind == DotKind::kBias) {
    return I32V{_mm512_dpwssd_epi32(sum.raw, code.x.raw, a.x.raw)};
  } else if constexpr (kKind == DotKind::kQuery) {
    return I32V{_mm512_dpbusd_epi32(sum.raw, code.x.raw, a.x.raw)};
  } else {
    return I32V{_mm512_dpbusd_epi32(sum.raw, a.x.raw, code.x.raw)};
  }
}
#else
// Four bytes as two pairs of int16, whose products sum in pairs.
template <DotKind kKind>
struct Operand {
  hn::Vec<I16> even, odd;
  HWY_INLINE Operand(U32V v, bool is_code) {
    const auto x = hn::BitCast(I16(), v);
    if constexpr (kKind == DotKind::kBias) {
      even = odd = x;
    } else if (kKind == DotKind::kQuery || is_code) {
      even = hn::ShiftRight<8>(hn::ShiftLeft<8>(x));
      odd = hn::ShiftRight<8>(x);
    } else {
      even = hn::And(x, hn::Set(I16(), 0xff));
      odd = hn::BitCast(I16(), hn::ShiftRight<8>(hn::BitCast(U16(), x)));
    }
  }
};

// sum + a0 b0 + a1 b1 of the pairs of each lane.
HWY_INLINE I32V AddPairs(I32V sum, hn::Vec<I16> a, hn::Vec<I16> b) {
#if HWY_ARCH_X86
  I32V unused = sum;  // x86 sums neighbours; other machines may not
  return hn::ReorderWidenMulAccumulate(I32(), a, b, sum, unused);
#else
  const auto x = hn::BitCast(I32(), a), y = hn::BitCast(I32(), b);
  const auto low =
      hn::Mul(hn::ShiftRight<16>(hn::ShiftLeft<16>(x)), hn::ShiftRight<16>(hn::ShiftLeft<16>(y)));
  return hn::Add(sum, hn::Add(low, hn::Mul(hn::ShiftRight<16>(x), hn::ShiftRight<16>(y))));
#endif
}

template <DotKind kKind>
HWY_INLINE I32V MultiplyAdd(I32V sum, const Operand<kKind>& code, const Operand<kKind>& a) {
  sum = AddPairs(sum, code.even, a.even);
  return kKind == DotKind::kBias ? sum : AddPairs(sum, code.odd, a.odd);
}
#endif

// The vectors of one strip: NV registers of lanes, R rows.
template <DotKind kKind, int kBits, int R, int NV>
struct Strip {
  static constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(U32()));
  I32V sum[R][NV];

  int64_t lane = 0;  // first one

  HWY_INLINE void Start(const DotArgs& t) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) {
        // 128 was added to every level: the sums begin where that ends at nothing.
        sum[r][v] =
            KVRING_VNNI && kKind == DotKind::kQuery ? hn::Set(I32(), -t.q_sum[r]) : hn::Zero(I32());
      }
    }
  }

  template <int kGroup>
  HWY_INLINE void Group(const DotArgs& t, const Levels<kKind, kBits>& levels, const U32V (&x)[NV],
                        int64_t at) {
    if constexpr (kGroup < WordGroups<kBits>()) {
      U32V code[NV];
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) code[v] = levels.template Get<kGroup>(x[v]);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Operand<kKind> a(hn::Set(U32(), t.a[r * t.lda + at]), false);
        const Operand<kKind> b = kKind == DotKind::kBias
                                     ? Operand<kKind>(hn::Set(U32(), t.b[r * t.lda + at]), false)
                                     : a;
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) {
          const bool second = kKind == DotKind::kBias && lane + v * kLanes >= kBiasLanes;
          sum[r][v] = MultiplyAdd<kKind>(sum[r][v], Operand<kKind>(code[v], true), second ? b : a);
        }
      }
      Group<kGroup + 1>(t, levels, x, at + 1);
    }
  }

  template <int kPart>
  HWY_INLINE void Part(const DotArgs& t, const Levels<kKind, kBits>& levels, const uint32_t* words,
                       int64_t at) {
    U32V x[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) {
      const uint32_t* const from = words + v * kLanes;
      x[v] = LoadPart<kBits, kPart>(from, t.stride);
      if constexpr (kBits == kReady) Keep(x[v]);
      if constexpr (kBits != kReady && kPart < 3) {
        FetchAhead(reinterpret_cast<const uint8_t*>(from + kPart * t.stride) + t.next);
      }
    }
    Group<0>(t, levels, x, at);
  }

  HWY_INLINE void Run(const DotArgs& t, int64_t first_lane) {
    lane = first_lane;
    Start(t);
    const Levels<kKind, kBits> levels(t.level);
    const uint32_t* words = t.words + lane;
    constexpr int kPer = WordGroups<kBits>();
    if constexpr (kBits == 3) {
      for (int64_t g = 0; g < t.groups; g += 4 * kPer, words += 3 * t.stride) {
        Part<0>(t, levels, words, g);
        Part<1>(t, levels, words, g + kPer);
        Part<2>(t, levels, words, g + 2 * kPer);
        Part<3>(t, levels, words, g + 3 * kPer);
      }
    } else {
      for (int64_t g = 0; g < t.groups; g += kPer, words += t.stride) Part<0>(t, levels, words, g);
    }
    kKind == DotKind::kWeight&& t.o != nullptr ? AddToFloats(t) : StoreSums(t);
  }

  HWY_INLINE void StoreSums(const DotArgs& t) const {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v)
        hn::StoreU(sum[r][v], I32(), t.out + r * t.ldo + lane + v * kLanes);
    }
  }

  HWY_INLINE void AddToFloats(const DotArgs& t) const {
    const F32 d;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F32V step = hn::Set(d, t.step[r]);
      float* const o = t.o + r * t.ldo + lane;
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) {
        const F32V x = hn::ConvertTo(d, sum[r][v]);
        hn::StoreU(hn::MulAdd(x, step, hn::LoadU(d, o + v * kLanes)), d, o + v * kLanes);
      }
    }
  }
};

// Rows together in registers, and registers of lanes.
inline constexpr int kDotRows = 4;
inline constexpr int kDotVectors = KVRING_VNNI ? 4 : 2;

template <DotKind kKind, int kBits, int R>
HWY_INLINE void DotLanes(const DotArgs& t, int64_t lanes) {
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(U32()));
  int64_t l = 0;
  for (; l + kDotVectors * kLanes <= lanes; l += kDotVectors * kLanes)
    Strip<kKind, kBits, R, kDotVectors>().Run(t, l);
  for (; l < lanes; l += kLanes) Strip<kKind, kBits, R, 1>().Run(t, l);
}

// out[r][lane] for `rows` rows and `lanes` lanes, a multiple of 16.
template <DotKind kKind, int kBits>
HWY_NOINLINE void Dot(const DotArgs& args, int64_t lanes, int64_t rows) {
  if (rows == 1) return DotLanes<kKind, kBits, 1>(args, lanes);
  if (rows == 2) return DotLanes<kKind, kBits, 2>(args, lanes);
  if (rows == 3) return DotLanes<kKind, kBits, 3>(args, lanes);
  DotArgs t = args;
  for (; rows >= kDotRows; rows -= kDotRows) {
    DotLanes<kKind, kBits, kDotRows>(t, lanes);
    t.a += kDotRows * t.lda;
    t.out += kDotRows * t.ldo;
    if (t.b != nullptr) t.b += kDotRows * t.lda;
    if (t.q_sum != nullptr) t.q_sum += kDotRows;
    if (t.o != nullptr) t.step += kDotRows, t.o += kDotRows * t.ldo;
  }
  if (rows > 0) Dot<kKind, kBits>(t, lanes, rows);
}

// to: [groups][lanes] of levels, four a word: what Dot<kKind, kReady> reads.
template <DotKind kKind, int kBits>
HWY_NOINLINE void Unpack(const DotArgs& t, int64_t lanes, uint32_t* to) {
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(U32()));
  const Levels<kKind, kBits> levels(t.level);
  const U32 d;
  for (int64_t l = 0; l < lanes; l += kLanes) {
    const uint32_t* words = t.words + l;
    uint32_t* out = to + l;
    const auto store = [&](U32V x) {
      hn::StoreU(levels.template Get<0>(x), d, out);
      if constexpr (WordGroups<kBits>() > 1) hn::StoreU(levels.template Get<1>(x), d, out + lanes);
      if constexpr (WordGroups<kBits>() > 2) {
        hn::StoreU(levels.template Get<2>(x), d, out + 2 * lanes);
        hn::StoreU(levels.template Get<3>(x), d, out + 3 * lanes);
      }
      out += WordGroups<kBits>() * lanes;
    };
    for (int64_t g = 0; g < t.groups;) {
      for (int w = 0; w < (kBits == 3 ? 3 : 1); ++w)
        FetchAhead(reinterpret_cast<const uint8_t*>(words + w * t.stride) + t.next);
      store(LoadPart<kBits, 0>(words, t.stride));
      if constexpr (kBits == 3) {
        store(LoadPart<kBits, 1>(words, t.stride));
        store(LoadPart<kBits, 2>(words, t.stride));
        store(LoadPart<kBits, 3>(words, t.stride));
      }
      g += WordGroups<kBits>() * (kBits == 3 ? 4 : 1);
      words += t.stride * (kBits == 3 ? 3 : 1);
    }
  }
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRING_CPU_PACKED_DOT_INL_H_
