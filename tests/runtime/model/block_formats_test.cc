// SPDX-License-Identifier: Apache-2.0
// Every weight format of the table as blocks of a linear layer: read from a file, packed, multiplied.
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>

#include "gtest/gtest.h"
#include "kernels/block_linear.h"
#include "kernels/simd_target.h"
#include "kernels/weights/weight_format.h"
#include "runtime/model/gguf_writer.h"
#include "runtime/model/tensor_reader.h"
#include "tests/runtime/model/model_files.h"
#include "tests/support/numeric.h"

namespace kvring {
namespace {

constexpr char kName[] = "blk.0.ffn_up.weight";

// Blocks of the goldens: random ones, and scales at both ends of fp16.
std::string GoldenBlocks(const WeightFormat& format) {
  std::ifstream in(std::string("tests/golden/weights/") + format.name + ".golden",
                   std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  int32_t blocks = 0;
  if (all.size() < sizeof(blocks)) return "";
  std::memcpy(&blocks, all.data(), sizeof(blocks));
  return all.substr(sizeof(blocks), static_cast<size_t>(blocks) * format.block_bytes);
}

struct OneTensor {
  std::string bytes;  // what the file views
  std::unique_ptr<GgufFile> file;
  int64_t in = 0, rows = 0;
};

// Rows of two blocks, of 32 numbers where the format is one of plain numbers.
OneTensor MakeFile(const WeightFormat& format, const std::string& blocks) {
  OneTensor t;
  t.in = format.block_elements == 1 ? 32 : 2 * format.block_elements;
  t.rows = static_cast<int64_t>(blocks.size()) / format.block_bytes * format.block_elements / t.in;
  GgufWriter writer;
  writer.SetStrings("tokenizer.ggml.tokens", {"a"});
  const absl::Status added = writer.AddTensor(kName, format, {t.in, t.rows}, blocks);
  EXPECT_TRUE(added.ok()) << added;
  t.bytes = writer.Bytes();
  auto file = GgufFile::FromMemory(AsBytes(t.bytes), "test.gguf");
  EXPECT_TRUE(file.ok()) << file.status();
  if (file.ok()) t.file = std::move(*file);
  return t;
}

class BlockFormats : public testing::TestWithParam<WeightFormat> {};

// The file's numbers times x in double. What is lost: half a step of each activation (the largest of 32 over 254), half a
// step of each weight where the format is plain (likewise), three fp32 steps a group over the sum of magnitudes.
TEST_P(BlockFormats, MultiplyAsTheFilesNumbersDo) {
  const std::string blocks = GoldenBlocks(GetParam());
  ASSERT_FALSE(blocks.empty());
  const OneTensor t = MakeFile(GetParam(), blocks);
  ASSERT_NE(t.file, nullptr);
  const auto codes = ReadBlocks(*t.file, kName);
  const auto weights = ReadFloats(*t.file, {kName});
  ASSERT_TRUE(codes.ok() && weights.ok()) << codes.status() << weights.status();
  const std::vector<float> x = NormalFloats(t.in, 1);
  std::vector<float> y(t.rows), plain(t.rows);
  MakeBlockLinear({*codes}, t.in)->Forward(x.data(), y.data(), 1);
  MakeBlockLinearRef({*codes}, t.in)->Forward(x.data(), plain.data(), 1);
  // Builds for one instruction set alone (sanitizers) have no fused products: there the bound speaks for both forms.
  if (SimdTarget().rfind("AVX", 0) == 0) {
    EXPECT_TRUE(SameBits(y, plain));
  }
  for (int64_t r = 0; r < t.rows; ++r) {
    double sum = 0, bound = 0;
    for (int64_t b = 0; b < t.in; b += 32) {
      double most_x = 0, most_w = 0, sizes = 0;
      for (int64_t i = b; i < b + 32; ++i) {
        const int64_t group = (r * t.in + i) / codes->group;
        const double w = (*weights)[r * t.in + i];
        sum += w * x[i];
        most_x = std::max(most_x, std::fabs(double{x[i]}));
        most_w = std::max(most_w, std::fabs(w));
        // Before the offset takes away: what the steps' roundings are relative to.
        sizes +=
            std::fabs(double{codes->scales[group]} * (codes->codes[r * t.in + i] - codes->zero)) +
            (codes->offsets.empty() ? 0.0 : std::fabs(double{codes->offsets[group]}));
      }
      const double of_x = most_x / 254, of_w = GetParam().split == nullptr ? most_w / 254 : 0.0;
      bound += (of_x * sizes + of_w * 32 * (most_x + of_x)) * (1 + 1e-5);  // fp32 scales
      bound += 3.0 * static_cast<double>(t.in) / codes->group * kUnitF32 * most_x * sizes;
    }
    ASSERT_NEAR(y[r], sum, bound) << GetParam().name << " row " << r;
    ASSERT_NEAR(plain[r], sum, bound) << GetParam().name << " row " << r << ", plain form";
  }
}

INSTANTIATE_TEST_SUITE_P(Table, BlockFormats,
                         testing::ValuesIn(AllWeightFormats().begin(), AllWeightFormats().end()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvring
