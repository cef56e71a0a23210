// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/trellis_stream.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/trellis_stream.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef KVRING_CODEC_TRELLIS_STREAM_ONCE
#define KVRING_CODEC_TRELLIS_STREAM_ONCE
namespace kvring {

// Entries of all tables, one after the other; table 0 is zeros.
struct TrellisNumbers {
  float number[(kTrellisMaxBits + 1) * kTrellisEntries];
};

struct TrellisRange {
  const uint8_t* streams;
  int64_t bytes;  // of a stream
  int first, rows;
};

}  // namespace kvring
#endif

HWY_BEFORE_NAMESPACE();
namespace kvring {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;

// Lanes are slots. Coefficients that share a word load it once: three of four at 3 bits.
void TrellisAddKeys(const TrellisNumbers& numbers, const TrellisStream::Place& place,
                    const TrellisRange& range, int block, const float* scale, float* kt) {
  const DF d;
  const DI di;
  const DU du;
  for (int64_t t = 0; t < block; t += static_cast<int64_t>(hn::Lanes(d))) {
    const auto slot = hn::Add(hn::Iota(di, 0), hn::Set(di, static_cast<int32_t>(t)));
    const auto at = hn::Mul(slot, hn::Set(di, static_cast<int32_t>(range.bytes)));
    const auto gain = hn::LoadU(d, scale + t);
    auto word = hn::Zero(du);
    int32_t held = -1;
    for (int r = 0; r < range.rows; ++r) {
      const int i = range.first + r;
      if (place.mask[i] == 0) continue;
      if (place.byte[i] != held) {
        held = place.byte[i];
        word = hn::ShiftLeft<kTrellisWindow>(hn::BitCast(
            du, hn::GatherOffset(di, reinterpret_cast<const int32_t*>(range.streams + held), at)));
      }
      const auto window =
          hn::And(hn::ShiftRightSame(word, place.shift[i]), hn::Set(du, kTrellisEntries - 1));
      const auto number =
          hn::GatherIndex(d, numbers.number + place.table[i], hn::BitCast(di, window));
      float* const to = kt + int64_t{r} * block + t;
      hn::StoreU(hn::Add(hn::LoadU(d, to), hn::Mul(gain, number)), d, to);
    }
  }
}

// Lanes are coefficients.
void TrellisReadValues(const TrellisNumbers& numbers, const TrellisStream::Place& place,
                       const TrellisRange& range, int tokens, const float* scale,
                       const float* factor, int64_t stride, float* out) {
  const DF d;
  const DI di;
  const DU du;
  const int width = static_cast<int>(hn::Lanes(d));
  for (int r = 0; r < range.rows; r += width) {
    const int i = range.first + r, lanes = std::min(width, range.rows - r);
    const auto at = hn::LoadU(di, place.byte.data() + i);
    const auto shift = hn::BitCast(du, hn::LoadU(di, place.shift.data() + i));
    const auto mask = hn::BitCast(du, hn::LoadU(di, place.mask.data() + i));
    const auto table = hn::LoadU(di, place.table.data() + i);
    alignas(64) float part[16] = {};  // the last coefficients may be fewer than lanes
    std::copy_n(factor + r, lanes, part);
    const auto f = hn::Load(d, part);
    for (int t = 0; t < tokens; ++t) {
      const uint8_t* const stream = range.streams + t * range.bytes;
      const auto word = hn::ShiftLeft<kTrellisWindow>(
          hn::BitCast(du, hn::GatherOffset(di, reinterpret_cast<const int32_t*>(stream), at)));
      const auto window = hn::BitCast(di, hn::And(hn::Shr(word, shift), mask));
      const auto number = hn::GatherIndex(d, numbers.number, hn::Add(window, table));
      const auto value = hn::Mul(hn::Set(d, scale[t]), hn::Mul(f, number));
      float* const to = out + t * stride + r;
      if (lanes == width) {
        hn::StoreU(value, d, to);
      } else {
        hn::Store(value, d, part);
        std::copy_n(part, lanes, to);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvring
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvring {
namespace {

HWY_EXPORT(TrellisAddKeys);
HWY_EXPORT(TrellisReadValues);

constexpr int kVector = 16;    // the most lanes that read places at once
constexpr int kWordBits = 25;  // of a word that are left beside a window of bits before the stream

TrellisNumbers MakeNumbers() {
  TrellisNumbers numbers;
  float* to = numbers.number;
  for (const TrellisTable& table : TrellisTables())
    to = std::copy(table.number.begin(), table.number.end(), to);
  return numbers;
}

const TrellisNumbers& Numbers() {
  static const TrellisNumbers numbers = MakeNumbers();
  return numbers;
}

}  // namespace

TrellisStream::TrellisStream(const std::vector<uint8_t>& bits, int group_rows) : bits_(bits) {
  const size_t dim = bits.size();
  for (auto* list : {&place_.byte, &place_.shift, &place_.mask, &place_.table})
    list->assign(dim + kVector, 0);
  int32_t end = 0;
  int64_t group = 0, held = 0;  // held: the byte whose word the next coefficient may share
  for (size_t i = 0; i < dim; ++i) {
    if (i % group_rows == 0) {
      group = held = bytes_;
      end = 0;
    }
    end += bits[i];
    group_byte_.push_back(group);
    end_.push_back(end);
    bytes_ = group + (end + 7) / 8;
    if (bits[i] == 0) continue;
    if (end - 8 * (held - group) > kWordBits) held = group + (end - kTrellisWindow) / 8;
    place_.byte[i] = static_cast<int32_t>(held);
    place_.shift[i] = static_cast<int32_t>(end - 8 * (held - group));
    place_.mask[i] = kTrellisEntries - 1;
    place_.table[i] = bits[i] * kTrellisEntries;
  }
}

void TrellisStream::Put(const uint8_t* codes, int64_t stride, uint8_t* stream) const {
  std::fill_n(stream, bytes_, uint8_t{0});
  for (size_t i = 0; i < bits_.size(); ++i) {
    if (bits_[i] == 0) continue;
    const int32_t begin = end_[i] - bits_[i];
    const int wide = codes[i * stride] << begin % 8;
    uint8_t* const to = stream + group_byte_[i] + begin / 8;
    to[0] |= static_cast<uint8_t>(wide);
    if (begin % 8 + bits_[i] > 8) to[1] |= static_cast<uint8_t>(wide >> 8);
  }
}

int TrellisStream::Window(const uint8_t* stream, int i) const {
  int window = 0;
  for (int b = 0; b < kTrellisWindow; ++b) {
    const int32_t bit = end_[i] - kTrellisWindow + b;
    if (bit >= 0) window |= (stream[group_byte_[i] + bit / 8] >> bit % 8 & 1) << b;
  }
  return window;
}

void TrellisStream::AddKeys(const uint8_t* streams, int first, int rows, int block,
                            const float* scale, float* kt) const {
  HWY_DYNAMIC_DISPATCH(TrellisAddKeys)
  (Numbers(), place_, {streams, bytes_, first, rows}, block, scale, kt);
}

void TrellisStream::ReadValues(const uint8_t* streams, int first, int rows, int tokens,
                               const float* scale, const float* factor, int64_t stride,
                               float* out) const {
  HWY_DYNAMIC_DISPATCH(TrellisReadValues)
  (Numbers(), place_, {streams, bytes_, first, rows}, tokens, scale, factor, stride, out);
}

}  // namespace kvring
#endif  // HWY_ONCE
