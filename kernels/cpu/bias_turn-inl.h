// SPDX-License-Identifier: Apache-2.0
// The planes of a query's bias, turned to the middle of a page and rounded to int16; those of low frequency together as powers of
// the offset (kernels/codec/page_turns.h). Included once per Highway target.
#if defined(KVRING_CPU_BIAS_TURN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRING_CPU_BIAS_TURN_INL_H_
#undef KVRING_CPU_BIAS_TURN_INL_H_
#else
#define KVRING_CPU_BIAS_TURN_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/packed_registers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

// Numbers of a row's functions of one parity, so that no register is stored across cache lines: loads of its parts would wait.
HWY_INLINE constexpr int64_t TurnedStride(const BiasBasis& basis) {
  return (basis.functions + 31) / 32 * 32;
}

// Coefficients of both even and both odd functions of the folded planes.
struct FoldSums {
  F32V sum[4][kSumRegisters];

  HWY_INLINE FoldSums() {
    for (auto& registers : sum)
      for (F32V& v : registers) v = hn::Zero(F32());
  }
  // Register i of 16 planes, at `fold` those of a coefficient, which lie `count` apart.
  HWY_INLINE void Add(int i, F32V re, F32V im, const float* fold, int64_t count) {
    const F32 d;
    sum[0][i] = hn::Add(sum[0][i], re);
    sum[1][i] = hn::MulAdd(re, hn::LoadU(d, fold + count), sum[1][i]);
    sum[2][i] = hn::MulAdd(im, hn::LoadU(d, fold + 2 * count), sum[2][i]);
    sum[3][i] = hn::MulAdd(im, hn::LoadU(d, fold + 3 * count), sum[3][i]);
  }
  // To int16: the even ones, and the odd ones.
  HWY_INLINE void Store(int16_t* even, int16_t* odd) const {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
    const __m128i total = _mm_cvtps_epi32(JoinedSums(sum));
    const __m128i rounded = _mm_packs_epi32(total, total);
    _mm_storeu_si32(even, rounded);
    _mm_storeu_si32(odd, _mm_shuffle_epi32(rounded, 1));
#else
    alignas(16) float total[4];
    AddLanes(sum, total);
    const hn::FixedTag<float, 4> d;
    const hn::FixedTag<int16_t, 4> d16;
    alignas(8) int16_t rounded[4];
    hn::Store(hn::DemoteTo(d16, hn::NearestInt(hn::Load(d, total))), d16, rounded);
    std::memcpy(even, rounded, 4);
    std::memcpy(odd, rounded + 2, 4);
#endif
  }
};
static_assert(kSumRows == 4);

// A register of cosines and sines of a page's middle, and the planes of a row turned by them: parts that are even and odd about it.
struct PlaneTurn {
  F32V c, s;
  HWY_INLINE PlaneTurn(const float* turn, int64_t stride)
      : c(hn::LoadU(F32(), turn)), s(hn::LoadU(F32(), turn + stride)) {}
  HWY_INLINE void Apply(const float* z, int64_t stride, F32V& even, F32V& odd) const {
    const F32 d;
    const F32V re = hn::LoadU(d, z), im = hn::LoadU(d, z + stride);
    even = hn::MulAdd(im, s, hn::Mul(re, c));
    odd = hn::NegMulAdd(re, s, hn::Mul(im, c));
  }
};

// z of R rows, turned to the page's middle and rounded to int16: [R][2][TurnedStride], of even, then of odd functions.
template <int R>
HWY_INLINE void TurnRows(const float* z, int64_t stride, const BiasBasis& basis, const float* turn,
                         int16_t* to) {
  const int64_t folded = basis.folded, odds = TurnedStride(basis);
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(F32()));
  F32V even, odd;
  for (int64_t p = 0; p < folded; p += kLanes) {
    const PlaneTurn by(turn + p, stride);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      by.Apply(z + 2 * r * stride + p, stride, even, odd);
      StoreHalfWords(ToNearest(even), to + 2 * r * odds + p);
      StoreHalfWords(ToNearest(odd), to + (2 * r + 1) * odds + p);
    }
  }
  if (folded == stride) return;
  FoldSums sums[R];
  for (int64_t p = folded; p < stride; p += 16) {
#pragma GCC unroll 4
    for (int i = 0; i < kSumRegisters; ++i) {
      const int64_t at = p + i * kLanes;
      const PlaneTurn by(turn + at, stride);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        by.Apply(z + 2 * r * stride + at, stride, even, odd);
        sums[r].Add(i, even, odd, basis.fold + (at - folded), stride - folded);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
    sums[r].Store(to + 2 * r * odds + folded, to + (2 * r + 1) * odds + folded);
}

inline void TurnToPage(const PackedQueries& q, const BiasBasis& basis, int64_t first, int64_t rows,
                       const float* turn, uint32_t* out) {
  const float* z = q.z.data() + first * 2 * q.stride;
  int16_t* to = reinterpret_cast<int16_t*>(out);
  if constexpr (kSumRegisters == 1) {  // as many registers as there are
    for (; rows >= 3; rows -= 3, z += 6 * q.stride, to += 6 * TurnedStride(basis))
      TurnRows<3>(z, q.stride, basis, turn, to);
  }
  for (; rows > 0; --rows, z += 2 * q.stride, to += 2 * TurnedStride(basis))
    TurnRows<1>(z, q.stride, basis, turn, to);
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRING_CPU_BIAS_TURN_INL_H_
