// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/weights.h"

#include <cmath>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/model/gguf_writer.h"
#include "runtime/model/tensor_reader.h"
#include "tests/runtime/model/model_files.h"

namespace kvring {
namespace {

using testing::HasSubstr;

struct Loaded {
  std::string bytes;  // what the file views
  std::shared_ptr<const GgufFile> file;
  absl::StatusOr<std::shared_ptr<const Weights>> weights = absl::UnknownError("not loaded");
};

Loaded Load(const std::string& bytes, const WeightsOptions& options = WeightsOptions()) {
  Loaded loaded;
  loaded.bytes = bytes;
  auto file = GgufFile::FromMemory(AsBytes(loaded.bytes), "test.gguf");
  EXPECT_TRUE(file.ok()) << file.status();
  loaded.file = std::move(*file);
  const auto config = DeriveModelConfig(*loaded.file);
  EXPECT_TRUE(config.ok()) << config.status();
  loaded.weights = Weights::Load(loaded.file, *config, options);
  return loaded;
}

std::vector<float> TestInput(int64_t n) {
  std::vector<float> x(n);
  for (int64_t i = 0; i < n; ++i) x[i] = std::sin(static_cast<float>(i + 1));
  return x;
}

// y of the packed layer against x times the named tensors' rows in double. Error of an fp32 sum of n products in any
// order: at most n * 2^-24 times the sum of their absolute values (Higham 2002, 3.1), plus the rounding of the products.
void ExpectRows(const GgufFile& file, const Linear& linear, const std::vector<std::string>& names) {
  const auto weights = ReadFloats(file, names);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const int64_t in = linear.in(), out = linear.out();
  ASSERT_EQ(static_cast<int64_t>(weights->size()), in * out);
  const std::vector<float> x = TestInput(in);
  std::vector<float> y(out);
  linear.Forward(x.data(), y.data(), 1);
  for (int64_t r = 0; r < out; ++r) {
    double sum = 0.0, size = 0.0;
    for (int64_t i = 0; i < in; ++i) {
      const double product = double{x[i]} * (*weights)[r * in + i];
      sum += product, size += std::abs(product);
    }
    ASSERT_NEAR(y[r], sum, (in + 1) * 0x1p-24 * size) << names.front() << " row " << r;
  }
}

TEST(Weights, LayersAreTheFilesTensorsInOrder) {
  TinyModelOptions options = SmallOptions();
  options.value_dim = 24;
  const Loaded loaded = Load(TinyBytes(options));
  ASSERT_TRUE(loaded.weights.ok()) << loaded.weights.status();
  const Weights& weights = **loaded.weights;
  for (int i = 0; i < 2; ++i) {
    const std::string blk = absl::StrCat("blk.", i, ".");
    const LayerWeights& layer = weights.layer(i);
    ExpectRows(*loaded.file, *layer.qkv,
               {blk + "attn_q.weight", blk + "attn_k.weight", blk + "attn_v.weight"});
    ExpectRows(*loaded.file, *layer.output, {blk + "attn_output.weight"});
    ExpectRows(*loaded.file, *layer.gate_up, {blk + "ffn_gate.weight", blk + "ffn_up.weight"});
    ExpectRows(*loaded.file, *layer.down, {blk + "ffn_down.weight"});
    EXPECT_EQ(layer.attention_norm, *ReadFloats(*loaded.file, {blk + "attn_norm.weight"}));
    EXPECT_EQ(layer.ffn_norm, *ReadFloats(*loaded.file, {blk + "ffn_norm.weight"}));
    EXPECT_TRUE(layer.qkv_bias.empty());
  }
  EXPECT_EQ(weights.output_norm(), *ReadFloats(*loaded.file, {"output_norm.weight"}));
}

TEST(Weights, EmbeddingRowsComeFromTheFile) {
  for (const char* type : {"f32", "q8_0"}) {
    TinyModelOptions options = SmallOptions();
    options.weight_type = type;
    const Loaded loaded = Load(TinyBytes(options));
    ASSERT_TRUE(loaded.weights.ok()) << loaded.weights.status();
    const auto all = ReadFloats(*loaded.file, {"token_embd.weight"});
    const std::vector<int32_t> ids = {0, 1, 300, 511};
    std::vector<float> rows(ids.size() * 64);
    ASSERT_TRUE((*loaded.weights)->Embed(ids, rows.data()).ok());
    for (size_t i = 0; i < ids.size(); ++i)
      EXPECT_EQ(std::memcmp(&rows[i * 64], all->data() + ids[i] * 64, 64 * sizeof(float)), 0)
          << type << " " << ids[i];
  }
}

TEST(Weights, BiasesStandBesideTheirRows) {
  TinyModelOptions options = SmallOptions();
  options.architecture = "qwen2";
  const Loaded qwen = Load(TinyBytes(options));
  ASSERT_TRUE(qwen.weights.ok()) << qwen.weights.status();
  EXPECT_EQ(
      (*qwen.weights)->layer(1).qkv_bias,
      *ReadFloats(*qwen.file, {"blk.1.attn_q.bias", "blk.1.attn_k.bias", "blk.1.attn_v.bias"}));
  options = SmallOptions();
  options.key_bias = 40.0f;
  const Loaded keys = Load(TinyBytes(options));
  ASSERT_TRUE(keys.weights.ok()) << keys.weights.status();
  std::vector<float> expected(4 * 16, 0.0f);  // queries have none
  const auto bias = ReadFloats(*keys.file, {"blk.0.attn_k.bias"});
  expected.insert(expected.end(), bias->begin(), bias->end());
  expected.resize(4 * 16 + 2 * 16 + 2 * 16);
  EXPECT_EQ((*keys.weights)->layer(0).qkv_bias, expected);
}

// One copy of a shared head, and the logits of a file that holds it twice.
TEST(F20_OutputHead, TiedGivesTheLogitsOfTheCopyAndCostsTheSame) {
  TinyModelOptions options = SmallOptions();
  const Loaded tied = Load(TinyBytes(options));
  options.output = TinyOutput::kCopy;
  const Loaded copy = Load(TinyBytes(options));
  ASSERT_TRUE(tied.weights.ok() && copy.weights.ok());
  EXPECT_EQ((*tied.weights)->bytes(), (*copy.weights)->bytes());
  const std::vector<float> x = TestInput(64 * 3);
  std::vector<float> a(512 * 3), b(512 * 3);
  (*tied.weights)->output_head()->Forward(x.data(), a.data(), 3);
  (*copy.weights)->output_head()->Forward(x.data(), b.data(), 3);
  EXPECT_EQ(a, b);
  ExpectRows(*tied.file, *(*tied.weights)->output_head(), {"token_embd.weight"});
}

TEST(F20_OutputHead, ItsOwnTensorIsUsed) {
  TinyModelOptions options = SmallOptions();
  options.output = TinyOutput::kOwn;
  const Loaded own = Load(TinyBytes(options));
  ASSERT_TRUE(own.weights.ok()) << own.weights.status();
  ExpectRows(*own.file, *(*own.weights)->output_head(), {"output.weight"});
}

TEST(Weights, TheHeadIsLeftOutWhereNotAskedFor) {
  const std::string bytes = TinyBytes(SmallOptions());
  WeightsOptions options;
  options.output_head = false;
  const Loaded without = Load(bytes, options);
  ASSERT_TRUE(without.weights.ok()) << without.weights.status();
  EXPECT_EQ((*without.weights)->output_head(), nullptr);
  const Loaded with = Load(bytes);
  EXPECT_EQ((*with.weights)->bytes() - (*without.weights)->bytes(),
            (*with.weights)->output_head()->bytes());
}

TEST(Weights, BackwardIsKeptWhereAskedFor) {
  WeightsOptions options;
  options.keep_for_backward = true;
  const Loaded loaded = Load(TinyBytes(SmallOptions()), options);
  ASSERT_TRUE(loaded.weights.ok()) << loaded.weights.status();
  const Linear& down = *(*loaded.weights)->layer(0).down;
  std::vector<float> dy(down.out(), 0.0f), dx(down.in());
  dy[5] = 1.0f;  // picks row 5
  ASSERT_FALSE(down.BackwardData(dy.data(), dx.data(), 1));
  const auto weights = ReadFloats(*loaded.file, {"blk.0.ffn_down.weight"});
  EXPECT_EQ(std::vector<float>(weights->begin() + 5 * down.in(), weights->begin() + 6 * down.in()),
            dx);
}

// A file of blocks says so; one layer of plain numbers, and it does not.
TEST(Weights, TheFormOfAFilesBlocks) {
  for (const char* type : {"f32", "f16", "q8_0"}) {
    TinyModelOptions options = SmallOptions();
    options.weight_type = type;
    const Loaded loaded = Load(TinyBytes(options));
    const auto config = DeriveModelConfig(*loaded.file);
    ASSERT_TRUE(config.ok()) << config.status();
    const std::optional<BlockForm> form = FileBlocks(*loaded.file, *config);
    ASSERT_EQ(form.has_value(), std::string(type) == "q8_0") << type;
    if (form.has_value()) {
      EXPECT_EQ(*form, (BlockForm{8, 32, false}));
    }
  }
}

// Blocks keep nothing for a backward pass, and say so.
TEST(Weights, BlocksHaveNoBackwardPass) {
  WeightsOptions options;
  options.math = LinearMath::kBlocks;
  options.keep_for_backward = true;
  const Loaded loaded = Load(TinyBytes(SmallOptions()), options);
  ASSERT_FALSE(loaded.weights.ok());
  EXPECT_THAT(std::string(loaded.weights.status().message()), HasSubstr("backward"));
}

// A NaN in a matrix would reach every token in silence.
TEST(Weights, NumbersThatAreNotFiniteAreRefused) {
  const std::string good = TinyBytes(SmallOptions());
  const auto file = ParseBytes(good);
  for (const char* name : {"blk.1.ffn_up.weight", "token_embd.weight", "output_norm.weight"}) {
    std::string bytes = good;
    const float nan = NAN;
    const GgufTensor& tensor = *file->FindTensor(name);
    std::memcpy(bytes.data() + tensor.offset + tensor.data.size() - sizeof(nan), &nan, sizeof(nan));
    WeightsOptions options;
    options.output_head = false;
    const Loaded loaded = Load(bytes, options);
    ASSERT_FALSE(loaded.weights.ok());
    const std::string row = absl::StrCat("(row ", tensor.rows() - 1, ")");
    EXPECT_THAT(std::string(loaded.weights.status().message()),
                HasSubstr(absl::StrCat("test.gguf: tensor '", name, "'")));
    EXPECT_THAT(std::string(loaded.weights.status().message()), HasSubstr(row));
  }
}

}  // namespace
}  // namespace kvring
