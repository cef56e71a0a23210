// SPDX-License-Identifier: Apache-2.0
// SmolLM2-135M-Instruct as Q4_1: what the file holds, and rows of it against the `gguf` Python package. Skipped without
// the file (KVRING_TEST_MODEL, or the user's cache folder).
#include <map>

#include "gtest/gtest.h"
#include "runtime/model/model_config.h"
#include "runtime/model/tensor_reader.h"
#include "runtime/model/vocab_reader.h"
#include "tests/runtime/model/model_files.h"

namespace kvring {
namespace {

class RealModel : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = RealModelPath();
    if (path.empty()) GTEST_SKIP() << "the small real model is not here: run launch/fetch_model.sh";
    auto file = GgufFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = std::move(*file);
  }
  std::unique_ptr<GgufFile> file_;
};

TEST_F(RealModel, Header) {
  EXPECT_EQ(file_->version(), 3);
  EXPECT_EQ(file_->file_bytes(), 98362432);
  EXPECT_TRUE(file_->warnings().empty());
  std::map<std::string, int> types;
  for (const GgufTensor& tensor : file_->tensors()) ++types[tensor.format->name];
  EXPECT_EQ(types, (std::map<std::string, int>{{"F32", 61}, {"Q4_1", 210}, {"Q8_0", 1}}));
}

TEST_F(RealModel, Shape) {
  const auto config = DeriveModelConfig(*file_);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_EQ(config->layers, 30);
  EXPECT_EQ(config->hidden, 576);
  EXPECT_EQ(config->query_heads, 9);
  EXPECT_EQ(config->kv_heads, 3);
  EXPECT_EQ(config->dk, 64);
  EXPECT_EQ(config->dv, 64);
  EXPECT_EQ(config->ffn, 1536);
  EXPECT_EQ(config->vocab, 49152);
  EXPECT_FLOAT_EQ(config->rms_epsilon, 1e-5f);
  EXPECT_EQ(config->trained_context, 8192);
  EXPECT_TRUE(config->tied_output);
  EXPECT_EQ(config->rope_scaling, "none");
  EXPECT_TRUE(config->warnings.empty());
  ASSERT_EQ(config->rope.size(), 30);
  const RopeTable& rope = config->rope.front();
  EXPECT_EQ(rope.pairing, RopePairing::kInterleaved);
  ASSERT_EQ(rope.planes(), 32);
  EXPECT_NEAR(rope.inv_freq[1], 0.697830584859866, 1e-15);  // 100000^(-1/32), double rounding
}

TEST_F(RealModel, Vocabulary) {
  const auto vocab = ReadVocab(*file_);
  ASSERT_TRUE(vocab.ok()) << vocab.status();
  EXPECT_EQ(vocab->model, "gpt2");
  EXPECT_EQ(vocab->pre, "smollm");
  EXPECT_EQ(vocab->tokens.size(), 49152);
  EXPECT_EQ(vocab->merges.size(), 48900);
  EXPECT_EQ(vocab->tokens[1], "<|im_start|>");
  EXPECT_EQ(std::count(vocab->types.begin(), vocab->types.end(), TokenType::kControl), 17);
  EXPECT_EQ(vocab->bos, 1);
  EXPECT_EQ(vocab->eos, 2);
  EXPECT_EQ(vocab->pad, 2);
  EXPECT_EQ(vocab->unk, 0);
  EXPECT_EQ(vocab->add_bos, std::optional<bool>(false));
  EXPECT_NE(vocab->chat_template.find("<|im_start|>"), std::string::npos);
}

// Columns 0, 1, 33, the middle and the last of a row, exactly as gguf.quants.dequantize gives them.
struct Row {
  const char* tensor;
  int64_t row;
  float values[5];
};
constexpr Row kRows[] = {
    {"token_embd.weight",
     1000,
     {-0x1.ca8p-4f, -0x1.2efp-4f, -0x1.29fap-4f, -0x1.5cc4p-6f, 0x1.e3cp-4f}},
    {"token_embd.weight", 49151, {0x1.79p-7f, 0x1.79p-8f, 0x1.883p-4f, 0x1.68cp-4f, -0x1.55ap-5f}},
    {"blk.0.attn_q.weight", 5, {0x1.38p-4f, -0x1.194p-2f, -0x1.b64p-2f, -0x1.a9p-5f, -0x1.354p-4f}},
    {"blk.29.ffn_down.weight",
     575,
     {-0x1.d56p-3f, -0x1.408p-5f, 0x1.2d6p-3f, 0x1.ccp-6f, 0x1.dp-5f}},
    {"blk.17.attn_v.weight",
     191,
     {-0x1.4a9p-3f, -0x1.a7cp-4f, -0x1.8ep-5f, 0x1.dp-3f, -0x1.47cp-4f}},
    {"blk.3.ffn_norm.weight", 0, {0x1.4ep-4f, 0x1.c4p-3f, 0x1.f6p-3f, 0x1.cp-3f, 0x1.fcp-3f}},
    {"output_norm.weight", 0, {0x1.c2p+0f, 0x1.d2p+0f, 0x1.c4p+0f, 0x1.c8p+0f, 0x1.fcp+0f}},
};

TEST_F(RealModel, RowsAreTheReferencesBits) {
  for (const Row& row : kRows) {
    const auto floats = ReadFloats(*file_, {row.tensor});
    ASSERT_TRUE(floats.ok()) << floats.status();
    const int64_t width = file_->FindTensor(row.tensor)->row();
    const float* x = floats->data() + row.row * width;
    const int64_t columns[] = {0, 1, 33, width / 2, width - 1};
    for (int i = 0; i < 5; ++i)
      EXPECT_EQ(x[columns[i]], row.values[i]) << row.tensor << " column " << columns[i];
  }
}

}  // namespace
}  // namespace kvring
