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
#include "kernels/cpu/code_rows-inl.h"
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

// All 64 weights of `rows` rows (at most kTileRows), which take the same steps side by side: the last steps of a row, across the
// lanes of a register, wait for each other, those of several rows do not.
HWY_INLINE void SoftmaxWhole(float* s, int64_t lds, int rows, float* m, float* l, float* alpha) {
  const F32 d;
  constexpr int kBlock = 64;
  const int lanes = static_cast<int>(hn::Lanes(d));
  alignas(64) float old_m[16] = {}, new_m[16] = {};
  for (int r = 0; r < rows; ++r) {
    old_m[r] = l[r] == 0.0f ? -std::numeric_limits<float>::infinity() : m[r];
    F32V max = hn::Load(d, s + r * lds);
#pragma GCC unroll 16
    for (int j = lanes; j < kBlock; j += lanes) max = hn::Max(max, hn::Load(d, s + r * lds + j));
    new_m[r] = hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Set(d, old_m[r]), max)));
  }
#if HWY_NATIVE_FMA
  alignas(64) float factor[16];
  for (int j = 0; j < kTileRows; j += lanes) {
    hn::Store(Exp2Vec(d, hn::Sub(hn::Load(d, old_m + j), hn::Load(d, new_m + j))), d, factor + j);
  }
#else
  float factor[kTileRows];
  for (int r = 0; r < rows; ++r) factor[r] = Exp2(old_m[r] - new_m[r]);
#endif
  for (int r = 0; r < rows; ++r) {
    const F32V shift = hn::Set(d, new_m[r]);
    F32V sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
#pragma GCC unroll 4
    for (int j = 0; j < kBlock; j += 16) {
#pragma GCC unroll 4
      for (int i = 0; i < 16 / lanes; ++i) {
        float* const at = s + r * lds + j + i * lanes;
        const F32V p = Exp2VecBelow(d, hn::Sub(hn::Load(d, at), shift));
        hn::Store(p, d, at);
        sum[i] = hn::Add(sum[i], p);
      }
    }
    m[r] = new_m[r];
    l[r] = l[r] * factor[r] + SumLanes16(sum);
    alpha[r] = factor[r];
  }
}

#if KVRING_CODE_TABLES
// GemmTile of R rows by NV registers of lanes from `lane` on, where B is codes: the same chains of multiply-adds.
template <int R, int NV>
HWY_INLINE void GemmCodeTile(const TileOperands& t, const CodeRows& codes, int64_t lane) {
  const F32 d;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(d));
  const CodeNumbers numbers(codes);
  F32V acc[R][NV];
  StartSums<R, NV>(t, lane, acc);
  for (int64_t k = 0; k < t.k; ++k) {
    const CodeRow row(numbers, codes, k);
    F32V bv[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) {
      bv[v] = row.At(lane + v * kLanes);
      row.Fetch(lane + v * kLanes, t.ahead);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F32V av = hn::Set(d, t.a[r * t.lda + k]);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) acc[r][v] = hn::MulAdd(av, bv[v], acc[r][v]);
    }
  }
  StoreSums<R, NV>(t, lane, acc);
}

template <int R>
HWY_INLINE void GemmCodeColumns(const TileOperands& t, const CodeRows& codes, int64_t n) {
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(F32()));
  constexpr int kVectors = std::min(4, TileVectors<R>());
  int64_t lane = 0;
  for (; lane + kVectors * kLanes <= n; lane += kVectors * kLanes)
    GemmCodeTile<R, kVectors>(t, codes, lane);
  for (; lane < n; lane += kLanes) GemmCodeTile<R, 1>(t, codes, lane);
}

HWY_NOINLINE void GemmCodes(int rows, TileOperands t, const CodeRows& codes, int64_t n) {
  switch (rows) {
    case 1:
      return GemmCodeColumns<1>(t, codes, n);
    case 2:
      return GemmCodeColumns<2>(t, codes, n);
    case 3:
      return GemmCodeColumns<3>(t, codes, n);
    case 4:
      return GemmCodeColumns<4>(t, codes, n);
    case 5:
      return GemmCodeColumns<5>(t, codes, n);
    default:
      return GemmCodeColumns<6>(t, codes, n);
  }
}
#else
void GemmCodes(int, const TileOperands&, const CodeRows&, int64_t) {}
#endif

// Of each kind once in the code: two places use them.
template <class T>
HWY_NOINLINE void GemmPage(int rows, const OperandsOf<T>& t, int64_t n) {
  GemmRows(rows, t, n);
}

template <class T>
HWY_INLINE OperandsOf<T> With(const TileOperands& t, const T* b) {
  return {t.a, t.lda, b, t.ldb, t.k, t.c, t.ldc, t.scale, t.ahead};
}

// C = A B or C = scale C + A B; B is a tile, or part of a page in one of its forms.
HWY_INLINE void GemmAny(int rows, const TileOperands& t, const Half* half, const CodeRows* codes,
                        int64_t n) {
  if (codes != nullptr) return GemmCodes(rows, t, *codes, n);
  if (half != nullptr)
    return GemmPage(rows, With(t, reinterpret_cast<const hwy::float16_t*>(half)), n);
  if (t.ahead == 0) return GemmPage(rows, t, n);
  GemmPage(rows, With(t, reinterpret_cast<const PageFloat*>(t.b)), n);
}

// o (+)= weights x values for `rows` rows; o is dense, so a width that is no multiple of 16 goes through a padded copy.
HWY_INLINE void AddValues(const AttendTileArgs& args, const float* p, int64_t ldp, int64_t first,
                          int rows, int count, const float* alpha, int64_t ahead, float* padded_o) {
  float* o = args.partial.o + first * args.dv;
  const int64_t ldv = args.v_stride == 0 ? args.dv : args.v_stride;
  TileOperands t{p, ldp, args.v, ldv, count, o, args.dv, alpha, ahead};
  const int64_t wide = (args.dv + 15) / 16 * 16;
  if (wide == args.dv) return GemmAny(rows, t, args.half_v, args.code_v, args.dv);
  t.c = padded_o;
  t.ldc = wide;
  for (int r = 0; r < rows; ++r) std::copy_n(o + r * args.dv, args.dv, padded_o + r * wide);
  GemmAny(rows, t, args.half_v, args.code_v, args.dv);
  for (int r = 0; r < rows; ++r) std::copy_n(padded_o + r * wide, args.dv, o + r * args.dv);
}

int VisibleSlots(const AttendTileArgs& args, int64_t row) {
  return static_cast<int>(std::min<int64_t>(args.tokens, args.positions[row] - args.begin + 1));
}

// Rows [first, first + n) become weights; those that see the whole page together.
HWY_INLINE void Weigh(const AttendTileArgs& args, int64_t first, int n, const int* count, float* p,
                      int64_t ldp, int columns, float* alpha) {
  float* const l = args.partial.l + first;
  float* const m = args.partial.m + first;
  for (int r = 0; r < n; ++r) {
    if (args.scores != nullptr)
      args.scores->AddScores(args.first_row + first + r, args.begin, count[r], p + r * ldp);
    if (l[r] == 0.0f) std::fill_n(args.partial.o + (first + r) * args.dv, args.dv, 0.0f);
  }
  if (ldp == 64 && *std::min_element(count, count + n) == 64) {
    return SoftmaxWhole(p, ldp, n, m, l, alpha);
  }
  for (int r = 0; r < n; ++r) {
    alpha[r] = SoftmaxRow(p + r * ldp, count[r], columns, m + r, l + r);
  }
}

void AttendGroup(const AttendTileArgs& args, int64_t first, int rows, float* p, float* padded_o) {
  const int64_t ldp = (args.block + 15) / 16 * 16;
  float alpha[kGroupRows];
  int count[kGroupRows];
  int seen = 0;
  for (int r = 0; r < rows; ++r) seen = std::max(seen, count[r] = VisibleSlots(args, first + r));
  const int columns = (seen + 15) / 16 * 16;
  for (int r = 0; r < rows; r += kTileRows) {
    const int n = std::min(kTileRows, rows - r);
    GemmAny(n,
            {args.q + (first + r) * args.dk, args.dk, args.kt, args.block, args.dk, p + r * ldp,
             ldp, nullptr, first + r == 0 ? args.k_ahead : 0},
            args.half_kt, args.code_kt, std::min(columns, args.block));
  }
  for (int r = 0; r < rows; r += kTileRows) {
    Weigh(args, first + r, std::min(kTileRows, rows - r), count + r, p + r * ldp, ldp, columns,
          alpha + r);
  }
  for (int r = 0; r < rows; r += kTileRows) {
    const int n = std::min(kTileRows, rows - r);
    const int most = *std::max_element(count + r, count + r + n);
    AddValues(args, p + r * ldp, ldp, first + r, n, most, alpha + r,
              first + r == 0 ? args.v_ahead : 0, padded_o);
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

float* TileRoom(std::vector<float>& room, int64_t floats) {
  if (static_cast<int64_t>(room.size()) < floats + 16)
    room.resize(static_cast<size_t>(floats + 16));
  float* at = room.data();
  while (reinterpret_cast<uintptr_t>(at) % 64 != 0) ++at;
  return at;
}

int64_t BytesAhead(const AttendArgs& args, const PageView& page) {
  const PageView* const begin = args.pages.data();
  const PageView* const next = &page + 1;
  if (&page < begin || next >= begin + args.pages.size() || next->packed == nullptr) return 0;
  return next->packed - page.packed;
}

AttendTileArgs TileOf(const AttendArgs& args, const PageView& page, const float* q, int64_t first,
                      int64_t last, const SoftmaxPartial& partial) {
  AttendTileArgs tile;
  tile.q = q + first * args.dk;
  tile.positions = args.positions.data() + first;
  tile.rows = last - first;
  tile.first_row = first;
  tile.block = args.block_tokens;
  tile.dk = args.dk;
  tile.dv = args.dv;
  tile.begin = page.begin;
  tile.tokens = page.tokens;
  tile.scores = args.scores;
  tile.partial = partial.Slice(first, last - first);
  return tile;
}

void AttendTile(const AttendTileArgs& args, AttendScratch& scratch) {
  constexpr int64_t kGroup = 48, kBlock = 6;
  const int64_t wide_p = (args.block + 15) / 16 * 16, wide_o = (args.dv + 15) / 16 * 16;
  float* const p = TileRoom(scratch.p, kGroup * wide_p + kBlock * wide_o);
  HWY_DYNAMIC_DISPATCH(AttendTileImpl)(args, p, p + kGroup * wide_p);
}

}  // namespace kvring
#endif
