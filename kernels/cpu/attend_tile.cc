// SPDX-License-Identifier: Apache-2.0
// Scores and weighted values of one tile, 6 rows at a time in registers (gemm_tile-inl.h). Flash-attention's online
// softmax (Milakov and Gimelshein, arXiv:1805.02867) in base 2.
#include "kernels/cpu/attend_tile.h"

#include <algorithm>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend_tile.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/exp2-inl.h"
#include "kernels/cpu/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

// Rows whose scores are formed before their values are read: the two tiles take turns in the first-level cache.
constexpr int kGroupRows = 48;

// One row of scores [block, padded to 16] becomes weights; keys from `count` on weigh exactly zero. Returns alpha, what
// the row's older sums are scaled by, and updates m and l.
HWY_INLINE float SoftmaxRow(float* s, int count, int padded, float* m, float* l) {
  const F32 d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const float old_m = *l == 0.0f ? -std::numeric_limits<float>::infinity() : *m;
  F32V max = hn::Set(d, old_m);
  int j = 0;
  for (; j + lanes <= count; j += lanes) max = hn::Max(max, hn::Load(d, s + j));
  if (j < count) {
    max = hn::Max(max, hn::IfThenElse(hn::FirstN(d, count - j), hn::Load(d, s + j), max));
  }
  const float new_m = hn::GetLane(hn::MaxOfLanes(d, max));
  const F32V shift = hn::Set(d, new_m);
  F32V sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  const int parts = 16 / lanes;
  for (j = 0; j < padded; j += 16) {
    for (int i = 0; i < parts; ++i) {
      const int at = j + i * lanes;
      const int here = std::clamp(count - at, 0, lanes);
      F32V p = Exp2Vec(d, hn::Sub(hn::Load(d, s + at), shift));
      if (here < lanes) p = hn::IfThenElseZero(hn::FirstN(d, here), p);
      hn::Store(p, d, s + at);
      sum[i] = hn::Add(sum[i], p);
    }
  }
  const float alpha = Exp2(old_m - new_m);
  *m = new_m;
  *l = *l * alpha + SumLanes16(sum);
  return alpha;
}

// o (+)= weights x values for `rows` rows; o is dense, so a width that is no multiple of 16 goes through a padded copy.
HWY_INLINE void AddValues(const AttendTileArgs& args, const float* p, int64_t ldp, int64_t first,
                          int rows, int count, const float* alpha, float* padded_o) {
  float* o = args.partial.o + first * args.dv;
  TileOperands t{p, ldp, args.v, args.dv, count, o, args.dv, alpha};
  const int64_t wide = (args.dv + 15) / 16 * 16;
  if (wide == args.dv) return GemmRows(rows, t, args.dv);
  t.c = padded_o;
  t.ldc = wide;
  for (int r = 0; r < rows; ++r) std::copy_n(o + r * args.dv, args.dv, padded_o + r * wide);
  GemmRows(rows, t, args.dv);
  for (int r = 0; r < rows; ++r) std::copy_n(padded_o + r * wide, args.dv, o + r * args.dv);
}

int VisibleSlots(const AttendTileArgs& args, int64_t row) {
  return static_cast<int>(std::min<int64_t>(args.tokens, args.positions[row] - args.begin + 1));
}

void AttendGroup(const AttendTileArgs& args, int64_t first, int rows, float* p, float* padded_o) {
  const int64_t ldp = (args.block + 15) / 16 * 16;
  float alpha[kGroupRows];
  int count[kGroupRows];
  for (int r = 0; r < rows; r += kTileRows) {
    const int n = std::min(kTileRows, rows - r);
    GemmRows(n,
             {args.q + (first + r) * args.dk, args.dk, args.kt, args.block, args.dk, p + r * ldp,
              ldp, nullptr},
             args.block);
  }
  for (int r = 0; r < rows; ++r) {
    const int64_t row = first + r;
    count[r] = VisibleSlots(args, row);
    if (args.scores != nullptr)
      args.scores->AddScores(args.first_row + row, args.begin, count[r], p + r * ldp);
    float* l = args.partial.l + row;
    if (*l == 0.0f) std::fill_n(args.partial.o + row * args.dv, args.dv, 0.0f);
    alpha[r] = SoftmaxRow(p + r * ldp, count[r], static_cast<int>(ldp), args.partial.m + row, l);
  }
  for (int r = 0; r < rows; r += kTileRows) {
    const int n = std::min(kTileRows, rows - r);
    const int most = *std::max_element(count + r, count + r + n);
    AddValues(args, p + r * ldp, ldp, first + r, n, most, alpha + r, padded_o);
  }
}

void AttendTileImpl(const AttendTileArgs& args, float* p, float* padded_o) {
  for (int64_t r = 0; r < args.rows; r += kGroupRows) {
    AttendGroup(args, r, static_cast<int>(std::min<int64_t>(kGroupRows, args.rows - r)), p,
                padded_o);
  }
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(AttendTileImpl);

void AttendTile(const AttendTileArgs& args, AttendScratch& scratch) {
  constexpr int64_t kGroup = 48, kBlock = 6;
  const int64_t wide_p = (args.block + 15) / 16 * 16, wide_o = (args.dv + 15) / 16 * 16;
  const size_t need = static_cast<size_t>(kGroup * wide_p + kBlock * wide_o + 16);
  if (scratch.p.size() < need) scratch.p.resize(need);
  // Whole cache lines, as aligned loads of the widest registers need.
  float* p = scratch.p.data();
  while (reinterpret_cast<uintptr_t>(p) % 64 != 0) ++p;
  HWY_DYNAMIC_DISPATCH(AttendTileImpl)(args, p, p + kGroup * wide_p);
}

}  // namespace kvring
#endif
