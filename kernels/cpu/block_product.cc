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

#include "kernels/cpu/matmul_shape.h"

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
constexpr int kStripRows = KVRING_VNNI ? 4 : 2;  // by the number of registers
// Rows from which on a panel is taken apart first: the cost of that, in rows, is about three.
constexpr int64_t kManyRows = 12;

// kReady: a word is what the multiplication takes.
enum class Codes { kFour, kEight, kReady };

struct PanelArgs {
  const uint32_t* codes = nullptr;
  const void* scales = nullptr;
  const void* offsets = nullptr;  // null: none
  bool half = true;
  int start = 0;  // a block's sum begins at this many times the sum of its activations
  ActivationRow row{0};
  const uint8_t* x = nullptr;
  float* y = nullptr;
  int64_t ldy = 0;
};

HWY_INLINE F32V LoadScale(const void* from, bool half, int64_t at) {
  const F32 d;
  if (!half) return hn::LoadU(d, static_cast<const float*>(from) + at);
  const hn::Rebind<hwy::float16_t, F32> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, static_cast<const hwy::float16_t*>(from) + at));
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

// R rows by one strip of columns, over all blocks. kGroups: scales a block.
template <Codes kCodes, int kGroups, int R>
struct BlockStrip {
  static constexpr int kWords = kCodes == Codes::kFour ? 4 : 8;
  using Dot = Operand<DotKind::kQuery>;
  F32V acc[R][kStripVectors];
  I32V sum[R][kStripVectors];

  HWY_INLINE void Words(const PanelArgs& t, const uint32_t* codes, int64_t block, int group) {
    constexpr int kPer = kCodes == Codes::kFour ? 2 : 1;
    constexpr int kGroupWords = kWords / kGroups;
#pragma GCC unroll 8
    for (int w = 0; w < kGroupWords; ++w) {
      U32V word[kStripVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kStripVectors; ++v)
        word[v] = hn::LoadU(U32(), codes + (group * kGroupWords + w) * kPanelColumns + v * kLanes);
#pragma GCC unroll 2
      for (int part = 0; part < kPer; ++part) {
        U32V code[kStripVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kStripVectors; ++v) code[v] = Ready<kCodes>(word[v], part == 1);
        const int64_t at = block * 8 + (group * kGroupWords + w) * kPer + part;
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          uint32_t four;
          std::memcpy(&four, t.x + r * t.row.bytes() + at * 4, sizeof(four));
          const Dot a(hn::Set(U32(), four), false);
#pragma GCC unroll 2
          for (int v = 0; v < kStripVectors; ++v)
            sum[r][v] = MultiplyAdd<DotKind::kQuery>(sum[r][v], Dot(code[v], true), a);
        }
      }
    }
  }

  template <class T>
  static HWY_INLINE T Of(const PanelArgs& t, int r, int64_t array_at, int64_t i) {
    T value;
    std::memcpy(&value, t.x + r * t.row.bytes() + array_at + i * static_cast<int64_t>(sizeof(T)),
                sizeof(T));
    return value;
  }

  HWY_INLINE void Group(const PanelArgs& t, const uint32_t* codes, int64_t lane, int64_t block,
                        int group) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      int32_t of_row = Of<int32_t>(t, r, t.row.sums_at(), 2 * block + group);
      if constexpr (kGroups == 1) of_row += Of<int32_t>(t, r, t.row.sums_at(), 2 * block + 1);
#pragma GCC unroll 2
      for (int v = 0; v < kStripVectors; ++v) sum[r][v] = hn::Set(I32(), t.start * of_row);
    }
    Words(t, codes, block, group);
    F32V scale[kStripVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kStripVectors; ++v)
      scale[v] = LoadScale(t.scales, t.half,
                           (block * kGroups + group) * kPanelColumns + lane + v * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const F32V by = hn::Set(F32(), Of<float>(t, r, t.row.scales_at(), block));
#pragma GCC unroll 2
      for (int v = 0; v < kStripVectors; ++v) {
        acc[r][v] = hn::MulAdd(hn::ConvertTo(F32(), sum[r][v]), hn::Mul(scale[v], by), acc[r][v]);
      }
    }
  }

  HWY_INLINE void Offsets(const PanelArgs& t, int64_t lane, int64_t block) {
    F32V offset[kStripVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kStripVectors; ++v)
      offset[v] = LoadScale(t.offsets, t.half, block * kPanelColumns + lane + v * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const F32V scaled = hn::Set(F32(), Of<float>(t, r, t.row.scaled_sums_at(), block));
#pragma GCC unroll 2
      for (int v = 0; v < kStripVectors; ++v) acc[r][v] = hn::MulAdd(offset[v], scaled, acc[r][v]);
    }
  }

  HWY_INLINE void Run(const PanelArgs& t, int64_t lane) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kStripVectors; ++v) acc[r][v] = hn::Zero(F32());
    }
    const uint32_t* codes = t.codes + lane;
    for (int64_t b = 0; b < t.row.blocks; ++b, codes += kWords * kPanelColumns) {
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) Group(t, codes, lane, b, g);
      if (t.offsets != nullptr) Offsets(t, lane, b);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kStripVectors; ++v)
        hn::StoreU(acc[r][v], F32(), t.y + r * t.ldy + lane + v * kLanes);
    }
  }
};

template <Codes kCodes, int kGroups, int R>
HWY_NOINLINE void StripRows(const PanelArgs& t) {
  for (int64_t lane = 0; lane < kPanelColumns; lane += kStripColumns)
    BlockStrip<kCodes, kGroups, R>().Run(t, lane);
}

template <Codes kCodes, int kGroups>
void PanelRows(const PanelArgs& args, int64_t rows) {
  PanelArgs t = args;
  for (; rows >= kStripRows; rows -= kStripRows) {
    StripRows<kCodes, kGroups, kStripRows>(t);
    t.x += kStripRows * t.row.bytes();
    t.y += kStripRows * t.ldy;
  }
  if (rows == 1) StripRows<kCodes, kGroups, 1>(t);
  if constexpr (kStripRows == 4) {
    if (rows == 2) StripRows<kCodes, kGroups, 2>(t);
    if (rows == 3) StripRows<kCodes, kGroups, 3>(t);
  }
}

template <Codes kCodes>
void PanelRows(const PanelForm& form, const PanelArgs& t, int64_t rows) {
  if (form.group == 16) return PanelRows<kCodes, 2>(t, rows);
  PanelRows<kCodes, 1>(t, rows);
}

// Takes a panel apart into ready words and fp32 scales; args then point there.
void UnpackPanel(const PanelForm& form, uint8_t* to, PanelArgs& t) {
  const U32 d;
  auto* words = reinterpret_cast<uint32_t*>(to);
  const uint32_t* from = t.codes;
  const int64_t n = form.code_bytes() / 4;
  t.codes = words;
  for (int64_t i = 0; i < n; i += kPanelColumns, from += kPanelColumns) {
    for (int64_t lane = 0; lane < kPanelColumns; lane += kLanes) {
      const U32V word = hn::LoadU(d, from + lane);
      if (form.bits == 4) {
        hn::StoreU(Ready<Codes::kFour>(word, false), d, words + lane);
        hn::StoreU(Ready<Codes::kFour>(word, true), d, words + kPanelColumns + lane);
      } else {
        hn::StoreU(Ready<Codes::kEight>(word, false), d, words + lane);
      }
    }
    words += form.bits == 4 ? 2 * kPanelColumns : kPanelColumns;
  }
  if (!form.half) return;
  auto* floats = reinterpret_cast<float*>(words);
  const int64_t scales = form.scale_bytes() / 2;
  for (const void** array : {&t.scales, &t.offsets}) {
    if (*array == nullptr) continue;
    for (int64_t i = 0; i < scales; i += kLanes)
      hn::StoreU(LoadScale(*array, true, i), F32(), floats + i);
    *array = floats;
    floats += scales;
  }
  t.half = false;
}

void MultiplyPanelImpl(const PanelForm& form, const uint8_t* panel, const uint8_t* rows_at,
                       int64_t rows, float* y, int64_t ldy, uint8_t* scratch) {
  PanelArgs t;
  t.codes = reinterpret_cast<const uint32_t*>(panel);
  t.scales = panel + form.code_bytes();
  if (form.offset) t.offsets = panel + form.code_bytes() + form.scale_bytes();
  t.half = form.half;
  t.start = form.bits == 4 ? -form.zero : KVRING_VNNI ? -128 : 0;
  t.row = {form.blocks};
  t.x = rows_at;
  t.y = y;
  t.ldy = ldy;
  if (rows >= kManyRows) {
    UnpackPanel(form, scratch, t);
    PanelRows<Codes::kReady>(form, t, rows);
  } else if (form.bits == 4) {
    PanelRows<Codes::kFour, 1>(t, rows);
  } else {
    PanelRows<Codes::kEight>(form, t, rows);
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
  const I32 d32;
  const hn::Rebind<int8_t, F32> d8;
  for (int half = 0; half < 2; ++half) {
    auto sum = hn::Zero(d32);
    for (int64_t i = half * 16; i < half * 16 + 16; i += kLanes) {
      const auto n = hn::NearestInt(hn::Mul(hn::LoadU(f, x + i), hn::Set(f, by)));
      sum = hn::Add(sum, n);
      hn::StoreU(hn::DemoteTo(d8, n), d8, q + i);
    }
    sums[half] = hn::GetLane(hn::SumOfLanes(d32, sum));
  }
}

void QuantizeActivationsImpl(const float* x, int64_t in, uint8_t* row) {
  const ActivationRow at{(in + kBlockNumbers - 1) / kBlockNumbers};
  auto* q = reinterpret_cast<int8_t*>(row);
  auto* scales = reinterpret_cast<float*>(row + at.scales_at());
  auto* scaled_sums = reinterpret_cast<float*>(row + at.scaled_sums_at());
  auto* sums = reinterpret_cast<int32_t*>(row + at.sums_at());
  for (int64_t b = 0; b < at.blocks; ++b, x += kBlockNumbers) {
    float edge[kBlockNumbers] = {};
    const float* from = x;
    const int64_t rest = in - b * kBlockNumbers;
    if (rest < kBlockNumbers) from = std::copy_n(x, rest, edge) - rest;
    const float most = std::bit_cast<float>(LargestOfBlock(from));
    const bool finite = std::isfinite(most);
    // A block so small that the inverse overflows counts as zeros: below 1e-36 nothing is lost that fp32 would show.
    const float inverse = finite && most > 1e-36f ? 127.0f / most : 0.0f;
    if (finite) {
      RoundBlock(from, inverse, q + b * kBlockNumbers, sums + 2 * b);
    } else {
      std::memset(q + b * kBlockNumbers, 0, kBlockNumbers);
      sums[2 * b] = sums[2 * b + 1] = 0;
    }
    scales[b] = finite ? most / 127.0f : NAN;
    scaled_sums[b] = scales[b] * static_cast<float>(sums[2 * b] + sums[2 * b + 1]);
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

void MultiplyPanel(const PanelForm& form, const uint8_t* panel, const uint8_t* rows_at,
                   int64_t rows, float* y, int64_t ldy, int64_t columns) {
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
    (form, panel, rows_at, rows, y, ldy, scratch.get());
    return;
  }
  const int64_t row_bytes = ActivationRow{form.blocks}.bytes();
  constexpr int64_t kEdgeRows = 64;
  alignas(64) float edge[kEdgeRows * kPanelColumns];
  for (int64_t r = 0; r < rows; r += kEdgeRows) {
    const int64_t n = std::min(kEdgeRows, rows - r);
    HWY_DYNAMIC_DISPATCH(MultiplyPanelImpl)
    (form, panel, rows_at + r * row_bytes, n, edge, kPanelColumns, scratch.get());
    for (int64_t i = 0; i < n; ++i)
      std::copy_n(edge + i * kPanelColumns, columns, y + (r + i) * ldy);
  }
}

}  // namespace kvring
#endif
