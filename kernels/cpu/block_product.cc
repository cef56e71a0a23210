// SPDX-License-Identifier: Apache-2.0
// One strip holds the int32 sums of a block and the fp32 sums of the outputs in registers, a few rows by two registers of
// columns. Float steps of an output, in this order for every row count and every form of the codes:
//   block b, each group of it: acc = fma(float(sum), scale * row scale, acc); then, with offsets,
//   acc = fma(offset, scaled sum, acc).
#define HWY_WANT_AVX3_DL  // Highway builds its newest x86 target on demand only

#include "kernels/cpu/block_product.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cpu/aligned_bytes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/block_product.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/exp2-inl.h"
#include "kernels/cpu/packed_dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvring::HWY_NAMESPACE {

constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(F32()));
constexpr int kStripVectors = 2;
constexpr int64_t kStripColumns = kStripVectors * kLanes;
constexpr int kStripRows = KVRING_VNNI ? 6 : 2;  // by the number of registers
// Rows from which on a panel is taken apart first: the cost of that, in rows, is about three.
constexpr int64_t kManyRows = 12;
// How far ahead few rows fetch a panel: what memory delivers during its latency.
constexpr int64_t kFetchBytes = 4096;

// kReady: a word is what the multiplication takes.
enum class Codes { kFour, kEight, kReady };

struct PanelArgs {
  const uint8_t* panel = nullptr;
  int64_t blocks = 0;
  int64_t block_bytes = 0;
  int64_t scales_at = 0;   // in a block
  int64_t offsets_at = 0;  // 0: none
  bool half = true;
  int start = 0;  // a block's sum begins at this many times the sum of its activations
  const uint8_t* fetch_end = nullptr;
  int64_t row_bytes = 0;
  const uint8_t* x = nullptr;
  float* y = nullptr;
  int64_t ldy = 0;
};

HWY_INLINE F32V LoadScale(const uint8_t* from, bool half, int64_t at) {
  const F32 d;
  if (!half) return hn::LoadU(d, reinterpret_cast<const float*>(from) + at);
  const hn::Rebind<hwy::float16_t, F32> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from) + at));
}

// The operand of word w of a block, of four numbers (kFour: of the low or the high halves).
template <Codes kCodes>
HWY_INLINE U32V Ready(U32V word, bool high) {
  const U32 d;
  if constexpr (kCodes == Codes::kFour) {
    return hn::And(high ? hn::ShiftRight<4>(word) : word, hn::Set(d, 0x0f0f0f0fu));
  } else if constexpr (kCodes == Codes::kEight && KVRING_VNNI) {
    return hn::Xor(word, hn::Set(d, 0x80808080u));  // the first operand of vpdpbusd has no sign
  } else {
    return word;
  }
}

// Lines [from, from + bytes) that lie before `end`.
HWY_INLINE void FetchLines(const uint8_t* from, int64_t bytes, const uint8_t* end) {
  const uint8_t* const stop = std::min(from + bytes, end);
  for (; from < stop; from += 64) FetchAhead(from);
}

// R rows by one strip of columns, over all blocks. kGroups: scales a block.
template <Codes kCodes, int kGroups, bool kStart, int R>
struct BlockStrip {
  static constexpr int kWords = kCodes == Codes::kFour ? 4 : 8;
  using Dot = Operand<DotKind::kQuery>;
  F32V acc[R][kStripVectors];
  I32V sum[R][kStripVectors];

  HWY_INLINE void Words(const PanelArgs& t, const uint32_t* codes, const uint8_t* x, int group) {
    constexpr int kPer = kCodes == Codes::kFour ? 2 : 1;
    constexpr int kGroupWords = kWords / kGroups;
#pragma GCC unroll 8
    for (int w = group * kGroupWords; w < (group + 1) * kGroupWords; ++w) {
      U32V word[kStripVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kStripVectors; ++v)
        word[v] = hn::LoadU(U32(), codes + w * kPanelColumns + v * kLanes);
#pragma GCC unroll 2
      for (int part = 0; part < kPer; ++part) {
        U32V code[kStripVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kStripVectors; ++v) code[v] = Ready<kCodes>(word[v], part == 1);
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
          uint32_t four;
          std::memcpy(&four, x + r * t.row_bytes + (w * kPer + part) * 4, sizeof(four));
          const Dot a(hn::Set(U32(), four), false);
#pragma GCC unroll 2
          for (int v = 0; v < kStripVectors; ++v)
            sum[r][v] = MultiplyAdd<DotKind::kQuery>(sum[r][v], Dot(code[v], true), a);
        }
      }
    }
  }

  static HWY_INLINE const ActivationBlock& Of(const PanelArgs& t, const uint8_t* x, int r) {
    return *reinterpret_cast<const ActivationBlock*>(x + r * t.row_bytes);
  }

  HWY_INLINE void Group(const PanelArgs& t, const uint8_t* block, const uint8_t* x, int64_t lane,
                        int group) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      I32V start = hn::Zero(I32());
      if constexpr (kStart) {
        int32_t of_row = Of(t, x, r).sums[group];
        if constexpr (kGroups == 1) of_row += Of(t, x, r).sums[1];
        start = hn::Set(I32(), t.start * of_row);
      }
#pragma GCC unroll 2
      for (int v = 0; v < kStripVectors; ++v) sum[r][v] = start;
    }
    Words(t, reinterpret_cast<const uint32_t*>(block) + lane, x, group);
    F32V scale[kStripVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kStripVectors; ++v)
      scale[v] = LoadScale(block + t.scales_at, t.half, group * kPanelColumns + lane + v * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const F32V by = hn::Set(F32(), Of(t, x, r).scale);
#pragma GCC unroll 2
      for (int v = 0; v < kStripVectors; ++v)
        acc[r][v] = hn::MulAdd(hn::ConvertTo(F32(), sum[r][v]), hn::Mul(scale[v], by), acc[r][v]);
    }
  }

  HWY_INLINE void Offsets(const PanelArgs& t, const uint8_t* block, const uint8_t* x,
                          int64_t lane) {
    F32V offset[kStripVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kStripVectors; ++v)
      offset[v] = LoadScale(block + t.offsets_at, t.half, lane + v * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const F32V scaled = hn::Set(F32(), Of(t, x, r).scaled_sum);
#pragma GCC unroll 2
      for (int v = 0; v < kStripVectors; ++v) acc[r][v] = hn::MulAdd(offset[v], scaled, acc[r][v]);
    }
  }

  HWY_INLINE void Run(const PanelArgs& t, int64_t lane) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kStripVectors; ++v) acc[r][v] = hn::Zero(F32());
    }
    const uint8_t *block = t.panel, *x = t.x;
    for (int64_t b = 0; b < t.blocks; ++b, block += t.block_bytes, x += sizeof(ActivationBlock)) {
      if (kCodes != Codes::kReady && lane == 0)
        FetchLines(block + kFetchBytes, t.block_bytes, t.fetch_end);
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) Group(t, block, x, lane, g);
      if (t.offsets_at != 0) Offsets(t, block, x, lane);
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kStripVectors; ++v)
        hn::StoreU(acc[r][v], F32(), t.y + r * t.ldy + lane + v * kLanes);
    }
  }
};

template <Codes kCodes, int kGroups, bool kStart, int R>
HWY_NOINLINE void StripRows(const PanelArgs& t) {
  for (int64_t lane = 0; lane < kPanelColumns; lane += kStripColumns)
    BlockStrip<kCodes, kGroups, kStart, R>().Run(t, lane);
}

// `rows` of at most R.
template <Codes kCodes, int kGroups, bool kStart, int R = kStripRows>
HWY_INLINE void LastRows(const PanelArgs& t, int64_t rows) {
  if constexpr (R > 0) {
    if (rows == R) return StripRows<kCodes, kGroups, kStart, R>(t);
    LastRows<kCodes, kGroups, kStart, R - 1>(t, rows);
  }
}

// Many rows take the next panel's lines a few at a time: a panel is some hundred lines.
template <Codes kCodes, int kGroups, bool kStart>
void PanelRows(PanelArgs t, int64_t rows, const uint8_t* next, int64_t next_bytes) {
  const int64_t part = (next_bytes * kStripRows / rows + 63) / 64 * 64;
  for (; rows >= kStripRows; rows -= kStripRows) {
    if constexpr (kCodes == Codes::kReady) {
      FetchLines(next, part, t.fetch_end);
      next += part;
    }
    StripRows<kCodes, kGroups, kStart, kStripRows>(t);
    t.x += kStripRows * t.row_bytes;
    t.y += kStripRows * t.ldy;
  }
  LastRows<kCodes, kGroups, kStart>(t, rows);
}

// Takes a panel apart into ready words and fp32 scales; args then point there.
template <Codes kCodes>
void UnpackPanel(const PanelForm& form, uint8_t* to, PanelArgs& t) {
  const U32 d;
  const uint8_t* block = t.panel;
  const int64_t scales = form.scale_bytes() / (form.half ? 2 : 4) * (form.offset ? 2 : 1);
  constexpr int64_t kCodeBytes = kBlockNumbers * kPanelColumns;
  t.panel = to;
  for (int64_t b = 0; b < t.blocks; ++b, block += t.block_bytes) {
    const auto* from = reinterpret_cast<const uint32_t*>(block);
    auto* words = reinterpret_cast<uint32_t*>(to);
#pragma GCC unroll 4
    for (int64_t w = 0; w < (kCodes == Codes::kFour ? 4 : 8); ++w) {
      for (int64_t lane = 0; lane < kPanelColumns; lane += kLanes) {
        const U32V word = hn::LoadU(d, from + w * kPanelColumns + lane);
        if constexpr (kCodes == Codes::kFour) {
          hn::StoreU(Ready<kCodes>(word, false), d, words + 2 * w * kPanelColumns + lane);
          hn::StoreU(Ready<kCodes>(word, true), d, words + (2 * w + 1) * kPanelColumns + lane);
        } else {
          hn::StoreU(Ready<kCodes>(word, false), d, words + w * kPanelColumns + lane);
        }
      }
    }
    auto* floats = reinterpret_cast<float*>(to + kCodeBytes);
    for (int64_t i = 0; i < scales; i += kLanes)
      hn::StoreU(LoadScale(block + t.scales_at, t.half, i), F32(), floats + i);
    to += kCodeBytes + scales * 4;
  }
  t.block_bytes = kCodeBytes + scales * 4;
  t.scales_at = kCodeBytes;
  t.offsets_at = form.offset ? kCodeBytes + scales * 2 : 0;
  t.half = false;
}

// Without VNNI codes of 8 bits start at nothing.
template <Codes kCodes, int kGroups>
void PanelRows(const PanelForm& form, const PanelArgs& t, int64_t rows, const uint8_t* next) {
  if (t.start == 0) return PanelRows<kCodes, kGroups, false>(t, rows, next, form.bytes());
  PanelRows<kCodes, kGroups, true>(t, rows, next, form.bytes());
}

void MultiplyPanelImpl(const PanelForm& form, const uint8_t* panel, const uint8_t* end,
                       const uint8_t* rows_at, int64_t rows, float* y, int64_t ldy,
                       uint8_t* scratch) {
  PanelArgs t;
  t.panel = panel;
  t.blocks = form.blocks;
  t.block_bytes = form.block_bytes();
  t.scales_at = form.code_bytes();
  t.offsets_at = form.offset ? form.code_bytes() + form.scale_bytes() : 0;
  t.half = form.half;
  t.start = form.bits == 4 ? -form.zero : KVRING_VNNI ? -128 : 0;
  t.fetch_end = end;
  t.row_bytes = ActivationRow{form.blocks}.bytes();
  t.x = rows_at;
  t.y = y;
  t.ldy = ldy;
  const uint8_t* const next = panel + form.bytes();
  if (rows >= kManyRows) {
    if (form.bits == 4) {
      UnpackPanel<Codes::kFour>(form, scratch, t);
    } else {
      UnpackPanel<Codes::kEight>(form, scratch, t);
    }
    if (form.group == 16) return PanelRows<Codes::kReady, 2>(form, t, rows, next);
    PanelRows<Codes::kReady, 1>(form, t, rows, next);
  } else if (form.bits == 4) {
    PanelRows<Codes::kFour, 1>(form, t, rows, next);
  } else if (form.group == 16) {
    PanelRows<Codes::kEight, 2>(form, t, rows, next);
  } else {
    PanelRows<Codes::kEight, 1>(form, t, rows, next);
  }
}

// Largest magnitude of a block as bits: integers order magnitudes as floats do, and a NaN is above infinity.
HWY_INLINE uint32_t LargestOfBlock(const float* x) {
  const F32 f;
  const U32 u;
  auto most = hn::Zero(u);
  for (int64_t i = 0; i < kBlockNumbers; i += kLanes)
    most = hn::Max(most, hn::BitCast(u, hn::Abs(hn::LoadU(f, x + i))));
  return hn::GetLane(hn::MaxOfLanes(u, most));
}

HWY_INLINE void RoundBlock(const float* x, float by, int8_t* q, int32_t* sums) {
  const F32 f;
  const hn::Rebind<int8_t, F32> d8;
  for (int64_t i = 0; i < kBlockNumbers; i += kLanes)
    hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(hn::Mul(hn::LoadU(f, x + i), hn::Set(f, by)))), d8,
               q + i);
  // Sums of bytes without sign: 128 is added to each of sixteen.
  const hn::FixedTag<uint8_t, 16> d;
  for (int half = 0; half < 2; ++half) {
    const auto bytes = hn::LoadU(d, reinterpret_cast<const uint8_t*>(q + half * 16));
    uint64_t eights[2];
    hn::StoreU(hn::SumsOf8(hn::Xor(bytes, hn::Set(d, 0x80))), hn::FixedTag<uint64_t, 2>(), eights);
    sums[half] = static_cast<int32_t>(eights[0] + eights[1]) - 16 * 128;
  }
}

void QuantizeActivationsImpl(const float* x, int64_t in, uint8_t* row) {
  const int64_t blocks = (in + kBlockNumbers - 1) / kBlockNumbers;
  auto* to = reinterpret_cast<ActivationBlock*>(row);
  for (int64_t b = 0; b < blocks; ++b, ++to, x += kBlockNumbers) {
    float edge[kBlockNumbers] = {};
    const float* from = x;
    const int64_t rest = in - b * kBlockNumbers;
    if (rest < kBlockNumbers) from = std::copy_n(x, rest, edge) - rest;
    const float most = std::bit_cast<float>(LargestOfBlock(from));
    const bool finite = std::isfinite(most);
    // A block so small that the inverse overflows counts as zeros: below 1e-36 nothing is lost that fp32 would show.
    const float inverse = finite && most > 1e-36f ? 127.0f / most : 0.0f;
    if (finite) {
      RoundBlock(from, inverse, to->q, to->sums);
    } else {
      *to = {};
    }
    to->scale = finite ? most / 127.0f : NAN;
    to->scaled_sum = to->scale * static_cast<float>(to->sums[0] + to->sums[1]);
  }
}

}  // namespace kvring::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {

HWY_EXPORT(MultiplyPanelImpl);
HWY_EXPORT(QuantizeActivationsImpl);

void QuantizeActivations(const float* x, int64_t in, uint8_t* row) {
  HWY_DYNAMIC_DISPATCH(QuantizeActivationsImpl)(x, in, row);
}

void MultiplyPanel(const PanelForm& form, const uint8_t* panel, const uint8_t* end,
                   const uint8_t* rows_at, int64_t rows, float* y, int64_t ldy, int64_t columns) {
  // A panel taken apart: a byte a code, fp32 scales and offsets.
  const int64_t numbers = form.blocks * kBlockNumbers * kPanelColumns;
  const int64_t bytes = numbers + 2 * 4 * numbers / form.group;
  thread_local AlignedBytes scratch;
  thread_local int64_t scratch_bytes = 0;
  if (bytes > scratch_bytes) {
    scratch = AllocateAligned(bytes);
    scratch_bytes = bytes;
  }
  if (columns == kPanelColumns) {
    HWY_DYNAMIC_DISPATCH(MultiplyPanelImpl)
    (form, panel, end, rows_at, rows, y, ldy, scratch.get());
    return;
  }
  const int64_t row_bytes = ActivationRow{form.blocks}.bytes();
  constexpr int64_t kEdgeRows = 64;
  alignas(64) float edge[kEdgeRows * kPanelColumns];
  for (int64_t r = 0; r < rows; r += kEdgeRows) {
    const int64_t n = std::min(kEdgeRows, rows - r);
    HWY_DYNAMIC_DISPATCH(MultiplyPanelImpl)
    (form, panel, end, rows_at + r * row_bytes, n, edge, kPanelColumns, scratch.get());
    for (int64_t i = 0; i < n; ++i)
      std::copy_n(edge + i * kPanelColumns, columns, y + (r + i) * ldy);
  }
}

}  // namespace kvring
#endif
