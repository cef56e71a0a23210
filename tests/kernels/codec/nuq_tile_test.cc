// SPDX-License-Identifier: Apache-2.0
// The fast reading of nuq's pages is the plain one, bit for bit, on every instruction set.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/codec/bit_words.h"
#include "kernels/cpu/nuq_keys.h"
#include "kernels/cpu/nuq_slots.h"
#include "kernels/cpu/nuq_tile.h"
#include "kernels/ref/nuq_ref.h"
#include "kernels/sincos.h"
#include "tests/kernels/simd_targets.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

std::vector<uint8_t> RandomBytes(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(n);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  return bytes;
}

std::vector<Half> Halves(const std::vector<float>& x) {
  std::vector<Half> halves;
  for (const float value : x) halves.push_back(FloatToHalf(value));
  return halves;
}

// Codes of a page side with what they are worth: random words are codes of every value.
struct Side {
  int bits;
  int64_t rows, lanes;
  std::vector<uint8_t> words;
  std::vector<float> numbers, scale, offset;  // [2^bits], [rows], [rows]; fp16 numbers
  std::vector<Half> half_scale, half_offset;

  Side(int b, int64_t r, int64_t l)
      : bits(b),
        rows(r),
        lanes(l),
        words(RandomBytes(WordBytes(r, l, b), static_cast<unsigned>(b + 10 * r + l))),
        numbers(NormalFloats(int64_t{1} << b, 3)) {
    half_scale = Halves(NormalFloats(r, 5)), half_offset = Halves(NormalFloats(r, 7));
    half_scale[r / 2] = 0x0003, half_offset[r / 3] = 0x8001;  // subnormal ones
    half_offset[r / 2] = 0x8000;                              // a zero keeps its sign
    for (int64_t i = 0; i < r; ++i) {
      scale.push_back(HalfToFloat(half_scale[i]));
      offset.push_back(HalfToFloat(half_offset[i]));
    }
  }

  std::vector<float> Plain() const {
    std::vector<float> out(rows * lanes);
    NuqRowsRef({words.data(), bits, rows, lanes}, numbers.data(), scale.data(), offset.data(),
               out.data());
    return out;
  }
  std::vector<float> Tables() const {
    std::vector<float> tables(rows * kNuqTable), row(numbers.size());
    for (int64_t r = 0; r < rows; ++r) {
      for (size_t j = 0; j < row.size(); ++j) {
        const float scaled = scale[r] * numbers[j];
        row[j] = offset[r] + scaled;
      }
      RepeatNuqTable(row.data(), bits, &tables[r * kNuqTable]);
    }
    return tables;
  }
};

template <class Body>
void ForEachSide(const Body& body) {
  for (const int bits : {2, 3, 4}) {
    for (const int64_t rows : {1, 11, 16, 33, 64, 100, 128}) {
      for (const int64_t lanes : {16, 48, 64, 72, 80, 100}) body(Side(bits, rows, lanes));
    }
  }
}

TEST(NuqTile, RowsByTheirOwnTables) {
  ForEachSimdTarget([](int64_t) {
    ForEachSide([](const Side& side) {
      std::vector<float> out(side.rows * side.lanes, NAN);
      DecodeNuqRows({side.words.data(), side.bits, side.rows, side.lanes, out.data()},
                    side.Tables().data());
      ASSERT_TRUE(SameBits(out, side.Plain()))
          << side.bits << " " << side.rows << " " << side.lanes;
    });
  });
}

TEST(NuqTile, RowsByScaleAndOffset) {
  ForEachSimdTarget([](int64_t) {
    ForEachSide([](const Side& side) {
      std::vector<float> out(side.rows * side.lanes, NAN), table(kNuqTable);
      RepeatNuqTable(side.numbers.data(), side.bits, table.data());
      DecodeNuqRows({side.words.data(), side.bits, side.rows, side.lanes, out.data()},
                    NuqRowScales{table.data(), side.half_scale.data(), side.half_offset.data()});
      ASSERT_TRUE(SameBits(out, side.Plain()))
          << side.bits << " " << side.rows << " " << side.lanes;
    });
  });
}

struct SlotCase {
  int slots, used, dim, block, tokens;
};

// Slots of a page in the order of their tokens, `used` of them taken.
std::vector<uint8_t> MakeSlots(const SlotCase& c) {
  std::vector<uint8_t> bytes(4 * c.slots, 0);
  const std::vector<Half> residuals = Halves(NormalFloats(c.slots, 11));
  for (int i = 0; i < c.used; ++i) {
    const uint16_t index = static_cast<uint16_t>(int64_t{i} * (c.block * c.dim - 1) / c.used);
    const Half residual = i % 5 == 3 ? 0x8001 : residuals[i];  // a subnormal among them
    std::memcpy(&bytes[2 * i], &index, 2);
    std::memcpy(&bytes[2 * (c.slots + i)], &residual, 2);
  }
  return bytes;
}

TEST(NuqTile, SlotsOntoATile) {
  const std::vector<SlotCase> cases = {
      {0, 0, 64, 64, 64},     {1, 1, 64, 64, 64},     {5, 3, 80, 64, 64},
      {16, 16, 64, 64, 64},   {62, 41, 64, 64, 64},   {62, 62, 64, 64, 17},
      {128, 128, 96, 64, 64}, {129, 129, 96, 64, 60}, {300, 250, 512, 128, 128},
      {300, 300, 48, 16, 16}, {40, 0, 64, 64, 64}};
  ForEachSimdTarget([&](int64_t) {
    for (const SlotCase& c : cases) {
      const std::vector<uint8_t> bytes = MakeSlots(c);
      for (const bool columns : {false, true}) {
        const int64_t token_stride = columns ? 1 : c.dim, channel_stride = columns ? c.block : 1;
        std::vector<float> expected = NormalFloats(int64_t{c.block} * c.dim, 13);
        expected[0] = -0.0f;  // empty slots name element 0: adding their zero would show
        std::vector<float> tile = expected;
        AddNuqSlotsRef({bytes.data(), c.slots, c.dim, c.tokens, token_stride, channel_stride},
                       expected.data());
        AddNuqSlots(
            {bytes.data(), c.slots, c.dim, c.tokens, token_stride, channel_stride, tile.data()});
        ASSERT_TRUE(SameBits(tile, expected)) << c.slots << " " << c.used << " " << c.tokens;
      }
    }
  });
}

struct KeyCase {
  int dim, rotary, block;
  RopePairing pairing;
};

std::vector<KeyCase> KeyCases() {
  std::vector<KeyCase> cases;
  for (const RopePairing pairing : {RopePairing::kInterleaved, RopePairing::kHalfSplit}) {
    for (const int block : {16, 48, 64, 128}) {
      for (const int dim : {16, 64, 80, 128}) cases.push_back({dim, dim, block, pairing});
      cases.push_back(
          {64, 44, block, pairing});  // channels that do not turn, planes that fill no register
    }
  }
  return cases;
}

// Whole pages in one pass and in two steps, at near and far positions.
TEST(NuqTile, KeysOfAWholePage) {
  ForEachSimdTarget([](int64_t) {
    for (const KeyCase& c : KeyCases()) {
      RopeTable rope = MakeRopeTable(c.pairing, c.dim, c.rotary, 100000.0, {});
      rope.attention_scale = 1.1f;
      const PageAngles angles(rope, c.block);
      for (const int bits : {2, 3, 4}) {
        const Side side(bits, c.dim, c.block);
        const std::vector<float> tables = side.Tables();
        for (const int64_t begin : {0, 128, 9'999'936}) {
          std::vector<float> base(2 * rope.planes()), plain_base = base;
          RopeAngles(rope, begin, base.data());
          for (int p = 0; p < rope.planes(); ++p) {  // one by one
            const SinCosResult angle = SinCos(static_cast<double>(begin) * rope.inv_freq[p]);
            plain_base[2 * p] = static_cast<float>(angle.cos * double{rope.attention_scale});
            plain_base[2 * p + 1] = static_cast<float>(angle.sin * double{rope.attention_scale});
          }
          ASSERT_TRUE(SameBits(base, plain_base)) << begin;
          std::vector<float> expected = side.Plain();
          RotateKeysRef(angles, base.data(), expected.data());
          std::vector<float> steps = side.Plain(), pass(expected.size(), NAN);
          angles.RotateTile(base.data(), steps.data());
          ASSERT_TRUE(SameBits(steps, expected)) << c.dim << " " << c.block;
          DecodeNuqKeys(
              {side.words.data(), bits, tables.data(), &angles, base.data(), pass.data()});
          ASSERT_TRUE(SameBits(pass, expected)) << bits << " " << c.dim << " " << c.block;
        }
      }
    }
  });
}

}  // namespace
}  // namespace kvring
