// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec/bit_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "tests/kernels/simd_targets.h"

namespace kvring {
namespace {

using testing::ElementsAre;

std::vector<uint32_t> PackOne(int bits, const std::vector<uint8_t>& codes) {
  std::vector<uint32_t> words(WordRows(codes.size(), bits));
  PackColumn(codes.data(), codes.size(), bits, 0, 1, reinterpret_cast<uint8_t*>(words.data()));
  return words;
}

std::vector<uint8_t> Ramp(int n, int modulus) {
  std::vector<uint8_t> codes(n);
  for (int i = 0; i < n; ++i) codes[i] = i % modulus;
  return codes;
}

// The worked examples of KVQuant's packing (kvquant 10, T1).
TEST(BitWords, PublishedExamples) {
  EXPECT_THAT(PackOne(4, Ramp(16, 16)), ElementsAre(0x76543210u, 0xFEDCBA98u));
  EXPECT_THAT(PackOne(3, Ramp(32, 8)), ElementsAre(0x88FAC688u, 0xC688FAC6u, 0xFAC688FAu));
  std::vector<uint8_t> straddling(32, 0);
  straddling[10] = 5, straddling[21] = 3;
  EXPECT_THAT(PackOne(3, straddling), ElementsAre(0x40000000u, 0x80000001u, 0x00000001u));
  EXPECT_THAT(PackOne(2, Ramp(16, 4)), ElementsAre(0xE4E4E4E4u));
}

struct Shape {
  int bits;
  int64_t rows, lanes;
};

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (int bits : {2, 3, 4, 8}) {
    for (int64_t rows : {1, 10, 11, 16, 32, 33, 64, 100}) {
      for (int64_t lanes : {16, 48, 64, 100}) shapes.push_back({bits, rows, lanes});
    }
  }
  return shapes;
}

std::vector<uint8_t> RandomCodes(const Shape& s) {
  std::mt19937 random(s.bits * 1000 + s.rows * 10 + s.lanes);
  std::vector<uint8_t> codes(s.rows * s.lanes);
  for (uint8_t& code : codes) code = random() & ((1u << s.bits) - 1u);
  return codes;
}

// By rows and by columns, over rubbish and over zeros: the same codes come back, and outside rows nothing moved.
TEST(BitWords, RowsAndColumnsAgree) {
  for (const Shape& s : Shapes()) {
    const std::vector<uint8_t> codes = RandomCodes(s);
    std::vector<uint8_t> by_row(WordBytes(s.rows, s.lanes, s.bits), 0xff),
        by_column(by_row.size(), 0xaa);
    for (int64_t r = 0; r < s.rows; ++r)
      PackRow(&codes[r * s.lanes], s.lanes, s.bits, r, by_row.data());
    std::vector<uint8_t> column(s.rows);
    for (int64_t l = 0; l < s.lanes; ++l) {
      for (int64_t r = 0; r < s.rows; ++r) column[r] = codes[r * s.lanes + l];
      PackColumn(column.data(), s.rows, s.bits, l, s.lanes, by_column.data());
    }
    for (int64_t r = 0; r < s.rows; ++r) {
      for (int64_t l = 0; l < s.lanes; ++l) {
        ASSERT_EQ(CodeAt(by_row.data(), s.lanes, s.bits, r, l), codes[r * s.lanes + l])
            << s.bits << " " << r << " " << l;
        ASSERT_EQ(CodeAt(by_column.data(), s.lanes, s.bits, r, l), codes[r * s.lanes + l]);
      }
    }
  }
}

struct Case {
  Shape shape;
  std::vector<uint8_t> words;
  std::vector<float> row_scale, row_offset, lane_scale;
  std::vector<int8_t> level;
  std::vector<float> table;
};

Case MakeCase(const Shape& s) {
  Case c;
  c.shape = s;
  const std::vector<uint8_t> codes = RandomCodes(s);
  c.words.assign(WordBytes(s.rows, s.lanes, s.bits), 0);
  for (int64_t r = 0; r < s.rows; ++r)
    PackRow(&codes[r * s.lanes], s.lanes, s.bits, r, c.words.data());
  for (int64_t r = 0; r < s.rows; ++r)
    c.row_scale.push_back(0.25f + r), c.row_offset.push_back(3.0f - r);
  for (int64_t l = 0; l < s.lanes; ++l) c.lane_scale.push_back(0.1f * (l + 1));
  for (int i = 0; i < 16; ++i) c.level.push_back(7 * (i % (1 << std::min(s.bits, 4))) - 50);
  for (int i = 0; i < 16; ++i) c.table.push_back(0.37f * i - 2.0f);
  return c;
}

float LevelOf(const Case& c, uint32_t code) {
  return c.shape.bits == 8 ? static_cast<int8_t>(code) : c.level[code];
}

// Every instruction set gives the bits of the plain loop: products and sums are separate operations everywhere.
TEST(BitWords, AddLevelsMatchesPlainLoop) {
  ForEachSimdTarget([](int64_t) {
    for (const Shape& s : Shapes()) {
      if (s.lanes % 16 != 0) continue;
      const Case c = MakeCase(s);
      std::vector<float> out(s.rows * s.lanes, 0.75f);
      AddLevels(c.words.data(), s.bits, s.rows, s.lanes, c.level.data(), c.lane_scale.data(),
                out.data());
      for (int64_t r = 0; r < s.rows; ++r) {
        for (int64_t l = 0; l < s.lanes; ++l) {
          const float number = LevelOf(c, CodeAt(c.words.data(), s.lanes, s.bits, r, l));
          ASSERT_EQ(out[r * s.lanes + l], 0.75f + c.lane_scale[l] * number)
              << s.bits << " " << r << " " << l;
        }
      }
    }
  });
}

TEST(BitWords, UnpackRowsMatchesPlainLoop) {
  ForEachSimdTarget([](int64_t) {
    for (const Shape& s : Shapes()) {
      for (const CodeKind kind : {CodeKind::kLevel, CodeKind::kInteger, CodeKind::kTable}) {
        if (s.bits == 8 && kind != CodeKind::kLevel) continue;
        const Case c = MakeCase(s);
        std::vector<float> out(s.rows * s.lanes);
        UnpackRows({kind, c.level.data(), c.table.data()},
                   {c.words.data(), s.bits, s.rows, s.lanes, s.lanes, s.lanes, c.row_scale.data(),
                    c.row_offset.data(), out.data()});
        for (int64_t i = 0; i < s.rows * s.lanes; ++i) {
          const uint32_t code = CodeAt(c.words.data(), s.lanes, s.bits, i / s.lanes, i % s.lanes);
          const float number = kind == CodeKind::kLevel     ? LevelOf(c, code)
                               : kind == CodeKind::kInteger ? static_cast<float>(code)
                                                            : c.table[code];
          ASSERT_EQ(out[i], c.row_offset[i / s.lanes] + c.row_scale[i / s.lanes] * number);
        }
      }
    }
  });
}

}  // namespace
}  // namespace kvring
