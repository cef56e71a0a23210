// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/backward_tile.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/backward_tile.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/exp2-inl.h"
#include "kernels/cpu/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

constexpr int kBlock = kBackwardBlock;
constexpr int kTurnedRows = 4;  // divides the block

// C[r][n] += sum over k of A[k][r] B[k][n]: like GemmTile, with A read down its columns. a: [k][64].
template <int NV>
HWY_INLINE void TurnedTile(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t ldb,
                           int k, float* c, int64_t ldc) {
  const F32 d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  F32V acc[kTurnedRows][NV];
#pragma GCC unroll 4
  for (int r = 0; r < kTurnedRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[r][v] = hn::LoadU(d, c + r * ldc + v * kLanes);
  }
  for (int i = 0; i < k; ++i, a += kBlock, b += ldb) {
    F32V bv[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) bv[v] = hn::LoadU(d, b + v * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kTurnedRows; ++r) {
      const F32V av = hn::Set(d, a[r]);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[r][v] = hn::MulAdd(av, bv[v], acc[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kTurnedRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) hn::StoreU(acc[r][v], d, c + r * ldc + v * kLanes);
  }
}

// C: [64][n], n a multiple of 16.
HWY_INLINE void AddTurned(const float* a, const float* b, int k, float* c, int64_t n) {
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(F32()));
  constexpr int kWide = kLanes == 16 ? 4 : 2;
  for (int r = 0; r < kBlock; r += kTurnedRows) {
    int64_t at = 0;
    for (; at + kWide * kLanes <= n; at += kWide * kLanes) {
      TurnedTile<kWide>(a + r, b + at, n, k, c + r * n + at, n);
    }
    for (; at < n; at += kLanes) TurnedTile<1>(a + r, b + at, n, k, c + r * n + at, n);
  }
}

// C[rows][n] (+)= A[rows][k] B[k][n].
HWY_INLINE void Product(const float* a, int64_t k, const float* b, int64_t n, int rows, float* c,
                        const float* scale) {
  for (int r = 0; r < rows; r += kTileRows) {
    GemmRows(std::min(kTileRows, rows - r), {a + r * k, k, b, n, k, c + r * n, n, scale}, n);
  }
}

// Scores s become weights p, and dp becomes ds = p (dp - delta); keys from `count` on weigh zero.
HWY_INLINE void WeightsRow(float* s, float* dp, int count, float log_sum, float delta) {
  const F32 d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const F32V shift = hn::Set(d, log_sum), less = hn::Set(d, delta);
  for (int j = 0; j < kBlock; j += lanes) {
    F32V p = Exp2Vec(d, hn::Sub(hn::Load(d, s + j), shift));
    const int here = std::clamp(count - j, 0, lanes);
    if (here < lanes) p = hn::IfThenElseZero(hn::FirstN(d, here), p);
    hn::Store(p, d, s + j);
    hn::Store(hn::Mul(p, hn::Sub(hn::Load(d, dp + j), less)), d, dp + j);
  }
}

void BackwardTileImpl(const BackwardTileArgs& args) {
  alignas(64) float p[kBlock * kBlock], ds[kBlock * kBlock];
  alignas(64) static constexpr float kOnes[kTileRows] = {1, 1, 1, 1, 1, 1};
  Product(args.q, args.dk, args.kt, kBlock, args.rows, p, nullptr);
  Product(args.d_out, args.dv, args.vt, kBlock, args.rows, ds, nullptr);
  for (int r = 0; r < args.rows; ++r) {
    WeightsRow(p + r * kBlock, ds + r * kBlock, args.diagonal ? r + 1 : kBlock, args.log_sum[r],
               args.delta[r]);
  }
  Product(ds, kBlock, args.k, args.dk, args.rows, args.dq, kOnes);
  AddTurned(ds, args.q, args.rows, args.dk_sum, args.dk);
  AddTurned(p, args.d_out, args.rows, args.dv_sum, args.dv);
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(BackwardTileImpl);

void BackwardTile(const BackwardTileArgs& args) { HWY_DYNAMIC_DISPATCH(BackwardTileImpl)(args); }

}  // namespace kvring
#endif
