// SPDX-License-Identifier: Apache-2.0
// Every format against values of the `gguf` Python package (tests/golden/weights/make_weight_goldens.py). The products
// and sums have the same order there and here, and both are IEEE fp32 without contraction: equality is of bits.
#include "kernels/weights/weight_format.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace kvring {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

struct Golden {
  int32_t blocks = 0;
  std::string bytes;
  std::vector<float> floats;
};

Golden ReadGolden(const WeightFormat& format) {
  const std::string all = ReadAll(std::string("tests/golden/weights/") + format.name + ".golden");
  Golden golden;
  if (all.size() < sizeof(int32_t)) return golden;
  std::memcpy(&golden.blocks, all.data(), sizeof(int32_t));
  golden.bytes = all.substr(sizeof(int32_t), golden.blocks * format.block_bytes);
  golden.floats.resize(golden.blocks * format.block_elements);
  const size_t floats_at = sizeof(int32_t) + golden.bytes.size();
  if (all.size() != floats_at + golden.floats.size() * sizeof(float)) return Golden();
  std::memcpy(golden.floats.data(), all.data() + floats_at, golden.floats.size() * sizeof(float));
  return golden;
}

class WeightFormats : public testing::TestWithParam<WeightFormat> {};

TEST_P(WeightFormats, EveryBlockHasTheBitsOfTheReference) {
  const WeightFormat& format = GetParam();
  const Golden golden = ReadGolden(format);
  ASSERT_GE(golden.blocks, 24) << "golden file of " << format.name << " is missing or cut";
  std::vector<float> out(golden.floats.size());
  format.dequantize(reinterpret_cast<const uint8_t*>(golden.bytes.data()), golden.blocks,
                    out.data());
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(golden.floats[i]))
        << format.name << " element " << i << ": " << out[i] << " instead of " << golden.floats[i];
  }
}

// Bytes have no alignment, a block depends on itself alone, and nothing beyond the last number is written.
TEST_P(WeightFormats, BlocksStandAloneAtAnyAddress) {
  const WeightFormat& format = GetParam();
  const Golden golden = ReadGolden(format);
  ASSERT_GT(golden.blocks, 0);
  constexpr float kGuard = -12345.0f;
  std::vector<uint8_t> shifted(format.block_bytes + 1);
  std::vector<float> out(format.block_elements + 1);
  for (int32_t b = 0; b < golden.blocks; ++b) {
    std::memcpy(shifted.data() + 1, golden.bytes.data() + b * format.block_bytes,
                format.block_bytes);
    out.assign(out.size(), kGuard);
    format.dequantize(shifted.data() + 1, 1, out.data());
    EXPECT_EQ(std::memcmp(out.data(), &golden.floats[b * format.block_elements],
                          format.block_elements * sizeof(float)),
              0)
        << format.name << " block " << b;
    EXPECT_EQ(out.back(), kGuard);
  }
}

TEST_P(WeightFormats, NoBlocksWriteNothing) {
  float guard = 7.0f;
  GetParam().dequantize(nullptr, 0, &guard);
  EXPECT_EQ(guard, 7.0f);
}

// Codes, scales and offsets give the numbers back, bit for bit, and codes keep to their range.
TEST_P(WeightFormats, SplitBlocksHoldTheSameNumbers) {
  const WeightFormat& format = GetParam();
  const CodeForm& form = format.form;
  ASSERT_EQ(form.bits == 0, format.split == nullptr);
  if (format.split == nullptr) {
    EXPECT_EQ(format.block_elements, 1);  // plain numbers
    return;
  }
  const Golden golden = ReadGolden(format);
  const size_t groups = golden.floats.size() / form.group;
  std::vector<int8_t> codes(golden.floats.size());
  std::vector<float> scales(groups), offsets(form.offset ? groups : 0);
  format.split(reinterpret_cast<const uint8_t*>(golden.bytes.data()), golden.blocks, codes.data(),
               scales.data(), offsets.data());
  for (size_t i = 0; i < codes.size(); ++i) {
    ASSERT_TRUE(form.bits != 4 || (codes[i] >= 0 && codes[i] < 16)) << "element " << i;
    float value = scales[i / form.group] * static_cast<float>(codes[i] - form.zero);
    if (form.offset) value += offsets[i / form.group];
    ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(golden.floats[i]))
        << format.name << " element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, WeightFormats,
                         testing::ValuesIn(AllWeightFormats().begin(), AllWeightFormats().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(WeightFormatTable, IdsAndNamesAreUniqueAndFound) {
  std::set<std::string> names;
  for (const WeightFormat& format : AllWeightFormats()) {
    EXPECT_TRUE(names.insert(format.name).second) << format.name;
    EXPECT_EQ(FindWeightFormat(format.ggml_type), &format);
  }
  EXPECT_EQ(names, (std::set<std::string>{"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
                                          "Q8_0", "Q4_K", "Q5_K", "Q6_K"}));
  EXPECT_EQ(FindWeightFormat(4), nullptr);
  EXPECT_EQ(FindWeightFormat(0xffffffffu), nullptr);
}

}  // namespace
}  // namespace kvring
