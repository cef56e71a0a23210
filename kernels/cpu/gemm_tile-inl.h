// SPDX-License-Identifier: Apache-2.0
// C[r][n] = scale[r] * C[r][n] + sum over k of A[r][k] * B[k][n], fp32, in registers: lanes run over n, every element is
// one chain of fused multiply-adds over k in ascending order. So an element's bits depend on its own row of A and on B
// alone, never on how many rows or columns share the registers. Included once per Highway target.
#if defined(KVRING_CPU_GEMM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRING_CPU_GEMM_TILE_INL_H_
#undef KVRING_CPU_GEMM_TILE_INL_H_
#else
#define KVRING_CPU_GEMM_TILE_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

inline constexpr int kTileRows = 6;
// Registers of columns beside R rows: 24 accumulators of 32 registers, or 12 of 16.
template <int R>
constexpr int TileVectors() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 1;
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return R <= 3 ? 8 : 4;
#else
  return R <= 1 ? 8 : R <= 3 ? 4 : 2;
#endif
}

// T: what B is made of. float: a tile, read many times. PageFloat, hwy::float16_t: a page of a cache that is read once, so what is
// `ahead` bytes from a line is asked for while it is multiplied.
struct PageFloat {
  float x;
};
template <class T>
struct OperandsOf {
  const float* a;  // [R][lda]
  int64_t lda;
  const T* b;  // [k][ldb]
  int64_t ldb;
  int64_t k;
  float* c;  // [R][ldc]
  int64_t ldc;
  const float* scale;  // [R]; null: C starts at zero
  int64_t ahead = 0;
};
using TileOperands = OperandsOf<float>;

HWY_INLINE F32V LoadNumbers(const float* b) { return hn::LoadU(F32(), b); }
HWY_INLINE F32V LoadNumbers(const PageFloat* b) { return hn::LoadU(F32(), &b->x); }
// The hardware's conversion: exact.
HWY_INLINE F32V LoadNumbers(const hwy::float16_t* b) {
  return hn::PromoteTo(F32(), hn::LoadU(hn::Rebind<hwy::float16_t, F32>(), b));
}

// Into the second-level cache: requests for the first level are few, and fill up with the lines of the page at hand.
template <class T>
HWY_INLINE void FetchBehind(const T* b, int64_t ahead) {
  if constexpr (!std::is_same_v<T, float>) {
    __builtin_prefetch(reinterpret_cast<const uint8_t*>(b) + ahead, 0, 2);
  }
}

// What the sums of columns from `column` on begin with.
template <int R, int NV, class T>
HWY_INLINE void StartSums(const OperandsOf<T>& t, int64_t column, F32V (&acc)[R][NV]) {
  const F32 d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  const float* const c = t.c + column;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) {
      acc[r][v] = t.scale == nullptr
                      ? hn::Zero(d)
                      : hn::Mul(hn::Set(d, t.scale[r]), hn::LoadU(d, c + r * t.ldc + v * kLanes));
    }
  }
}

template <int R, int NV, class T>
HWY_INLINE void StoreSums(const OperandsOf<T>& t, int64_t column, const F32V (&acc)[R][NV]) {
  const F32 d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  float* const c = t.c + column;
  // x + 0 turns -0 into +0 and leaves all else: steps that only add zeros, which some schedules skip, then change no bit.
  const F32V zero = hn::Zero(d);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) {
      hn::StoreU(hn::Add(acc[r][v], zero), d, c + r * t.ldc + v * kLanes);
    }
  }
}

template <int R, int NV, class T>
HWY_INLINE void GemmTile(const OperandsOf<T>& t) {
  const F32 d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  F32V acc[R][NV];
  StartSums<R, NV>(t, 0, acc);
  const float* HWY_RESTRICT a = t.a;
  const T* HWY_RESTRICT b = t.b;
  constexpr int kLineVectors = std::max(1, 64 / static_cast<int>(sizeof(T)) / kLanes);
  for (int64_t k = 0; k < t.k; ++k, b += t.ldb) {
    F32V bv[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) {
      bv[v] = LoadNumbers(b + v * kLanes);
      if (v % kLineVectors == 0) FetchBehind(b + v * kLanes, t.ahead);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F32V av = hn::Set(d, a[r * t.lda + k]);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) acc[r][v] = hn::MulAdd(av, bv[v], acc[r][v]);
    }
  }
  StoreSums<R, NV>(t, 0, acc);
}

// All columns of one block of R rows. n is rounded up to whole registers: the buffers reach that far.
template <int R, class T>
HWY_INLINE void GemmColumns(OperandsOf<T> t, int64_t n) {
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(F32()));
  constexpr int kVectors = TileVectors<R>();
  int64_t left = (n + kLanes - 1) / kLanes;
  const auto advance = [&](int64_t vectors) {
    t.b += vectors * kLanes;
    t.c += vectors * kLanes;
    left -= vectors;
  };
  for (; left >= kVectors; advance(kVectors)) GemmTile<R, kVectors>(t);
  if constexpr (kVectors > 4) {
    for (; left >= 4; advance(4)) GemmTile<R, 4>(t);
  }
  if constexpr (kVectors > 2) {
    for (; left >= 2; advance(2)) GemmTile<R, 2>(t);
  }
  for (; left > 0; advance(1)) GemmTile<R, 1>(t);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Sanitizers check every access, and 18 unrolled tiles on three instruction sets would compile for minutes: two small
// tiles read and write the same addresses and give the same bits.
template <class T = float>
HWY_INLINE void GemmRows(int rows, OperandsOf<T> t, int64_t n) {
  if (rows == kTileRows) return GemmColumns<kTileRows>(t, n);
  for (int r = 0; r < rows; ++r, t.a += t.lda, t.c += t.ldc) {
    OperandsOf<T> one = t;
    one.scale = t.scale == nullptr ? nullptr : t.scale + r;
    GemmColumns<1>(one, n);
  }
}
#else
template <class T = float>
HWY_INLINE void GemmRows(int rows, const OperandsOf<T>& t, int64_t n) {
  switch (rows) {
    case 1:
      return GemmColumns<1>(t, n);
    case 2:
      return GemmColumns<2>(t, n);
    case 3:
      return GemmColumns<3>(t, n);
    case 4:
      return GemmColumns<4>(t, n);
    case 5:
      return GemmColumns<5>(t, n);
    default:
      return GemmColumns<6>(t, n);
  }
}
#endif

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRING_CPU_GEMM_TILE_INL_H_
