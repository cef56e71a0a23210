// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/tc_planes.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/tc_planes.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvring {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The three planes' words of one vector of elements; planes that a class has not are zeros.
template <class DU>
struct PlaneWords {
  hn::Vec<DU> four, two, one;

  HWY_INLINE PlaneWords(DU d, const uint8_t* planes, int bits, int64_t block, int64_t at) {
    four = two = one = hn::Zero(d);
    if (bits & 4) {
      four = hn::LoadU(d, reinterpret_cast<const uint32_t*>(planes) + at);
      planes += 4 * block;
    }
    if (bits & 2) {
      const hn::Rebind<uint16_t, DU> d16;
      two = hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(planes) + at));
      planes += 2 * block;
    }
    if (bits & 1) {
      const hn::Rebind<uint8_t, DU> d8;
      one = hn::PromoteTo(d, hn::LoadU(d8, planes + at));
    }
  }

  HWY_INLINE hn::Vec<DU> Code(DU d, int bits, int r) const {
    const auto low = hn::And(hn::ShiftRightSame(four, 4 * r), hn::Set(d, 15u));
    const auto middle = hn::And(hn::ShiftRightSame(two, kTwoAt[r]), hn::Set(d, 3u));
    const auto top = hn::And(hn::ShiftRightSame(one, kOneAt[r]), hn::Set(d, 1u));
    const int two_bit = bits & 4, one_bit = bits & 6;  // where a plane's bits begin in a code
    return hn::Or(low, hn::Or(hn::ShiftLeftSame(middle, two_bit), hn::ShiftLeftSame(top, one_bit)));
  }
};

void AddKeys(const uint8_t* planes, int bits, int rows, int block, const float* numbers,
             const float* lane_scale, float* kt) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::RebindToSigned<decltype(d)> di;
  for (int64_t t = 0; t < block; t += static_cast<int64_t>(hn::Lanes(d))) {
    const PlaneWords<hn::RebindToUnsigned<hn::CappedTag<float, 16>>> words(du, planes, bits, block,
                                                                           t);
    const auto scale = hn::LoadU(d, lane_scale + t);
    for (int r = 0; r < rows; ++r) {
      const auto number = hn::GatherIndex(d, numbers, hn::BitCast(di, words.Code(du, bits, r)));
      float* const to = kt + int64_t{r} * block + t;
      hn::StoreU(hn::Add(hn::LoadU(d, to), hn::Mul(scale, number)), d, to);
    }
  }
}

void ReadValues(const uint8_t* planes, int bits, int tokens, int block, const float* numbers,
                const float* scale, const float* factor, int64_t stride, float* out) {
  const hn::CappedTag<float, 8> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::RebindToSigned<decltype(d)> di;
  for (int64_t c = 0; c < 8; c += static_cast<int64_t>(hn::Lanes(d))) {
    const auto f = hn::LoadU(d, factor + c);
    for (int64_t first = 0; first < tokens; first += 8) {
      const PlaneWords<hn::RebindToUnsigned<hn::CappedTag<float, 8>>> words(du, planes, bits, block,
                                                                            first + c);
      for (int r = 0; r < 8; ++r) {
        const auto number = hn::GatherIndex(d, numbers, hn::BitCast(di, words.Code(du, bits, r)));
        hn::StoreU(hn::Mul(hn::Set(d, scale[first + r]), hn::Mul(f, number)), d,
                   out + (first + r) * stride + c);
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

HWY_EXPORT(AddKeys);
HWY_EXPORT(ReadValues);

// Calls plane(width, first bit of the code, its words) for each plane that the class has.
template <class Bytes, class Plane>
void EachPlane(int bits, int block, Bytes* planes, Plane plane) {
  int low = 0;
  for (const int width : {4, 2, 1}) {
    if ((bits & width) == 0) continue;
    plane(width, low, planes);
    low += width;
    planes += int64_t{width} * block;
  }
}

int BitOf(int width, int r) { return width == 4 ? 4 * r : width == 2 ? kTwoAt[r] : kOneAt[r]; }

uint32_t Spread(const uint8_t* codes, int width, int low) {
  uint32_t word = 0;
  for (int r = 0; r < 8; ++r) {
    const uint32_t part = static_cast<uint32_t>(codes[r]) >> low & ((1u << width) - 1u);
    word |= part << BitOf(width, r);
  }
  return word;
}

int CodeAt(const uint8_t* planes, int bits, int block, int element, int r) {
  int code = 0;
  EachPlane(bits, block, planes, [&](int width, int low, const uint8_t* plane) {
    uint32_t word = 0;
    std::memcpy(&word, plane + int64_t{width} * element, width);
    code |= static_cast<int>(word >> BitOf(width, r) & ((1u << width) - 1u)) << low;
  });
  return code;
}

}  // namespace

void PutKeyClass(const uint8_t* codes, int bits, int slot, int block, uint8_t* planes) {
  EachPlane(bits, block, planes, [&](int width, int low, uint8_t* plane) {
    const uint32_t word = Spread(codes, width, low);
    std::memcpy(plane + int64_t{width} * slot, &word, width);
  });
}

void PutValueClass(const uint8_t* codes, int bits, int slot, int block, uint8_t* planes) {
  EachPlane(bits, block, planes, [&](int width, int low, uint8_t* plane) {
    const uint32_t mask = ((1u << width) - 1u) << BitOf(width, slot % 8);
    for (int c = 0; c < 8; ++c) {
      uint8_t* const at = plane + int64_t{width} * (slot / 8 * 8 + c);
      uint32_t word = 0;
      std::memcpy(&word, at, width);
      const uint32_t part = static_cast<uint32_t>(codes[c]) >> low;
      word = (word & ~mask) | (part << BitOf(width, slot % 8) & mask);
      std::memcpy(at, &word, width);
    }
  });
}

int KeyCodeAt(const uint8_t* planes, int bits, int slot, int block, int r) {
  return CodeAt(planes, bits, block, slot, r);
}

int ValueCodeAt(const uint8_t* planes, int bits, int slot, int block, int r) {
  return CodeAt(planes, bits, block, slot / 8 * 8 + r, slot % 8);
}

void AddKeyClass(const uint8_t* planes, int bits, int rows, int block, const float* numbers,
                 const float* lane_scale, float* kt) {
  HWY_DYNAMIC_DISPATCH(AddKeys)(planes, bits, rows, block, numbers, lane_scale, kt);
}

void ReadValueClass(const uint8_t* planes, int bits, int tokens, int block, const float* numbers,
                    const float* scale, const float* factor, int64_t stride, float* out) {
  HWY_DYNAMIC_DISPATCH(ReadValues)
  (planes, bits, tokens, block, numbers, scale, factor, stride, out);
}

}  // namespace kvring
#endif  // HWY_ONCE
