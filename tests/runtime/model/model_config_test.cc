// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/model_config.h"

#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/model/gguf_writer.h"
#include "tests/runtime/model/model_files.h"

namespace kvring {
namespace {

using testing::HasSubstr;

absl::StatusOr<ModelConfig> Derive(const std::string& bytes) {
  const auto file = ParseBytes(bytes);
  return DeriveModelConfig(*file);
}

// The file again, with keys and tensors changed: `change` may alter or drop a value (null: absent), or a tensor.
struct Changes {
  std::function<bool(const std::string& key, GgufValue& value)> value = [](auto&, auto&) {
    return true;
  };
  std::function<bool(GgufTensor& tensor)> tensor = [](auto&) { return true; };
  std::vector<std::pair<std::string, GgufValue>> more;
};

std::string Rewrite(const std::string& bytes, const Changes& changes) {
  const auto file = ParseBytes(bytes);
  GgufWriter writer;
  for (auto [key, value] : file->metadata()) {
    if (changes.value(key, value)) writer.Set(key, value);
  }
  for (const auto& [key, value] : changes.more) writer.Set(key, value);
  for (GgufTensor tensor : file->tensors()) {
    if (!changes.tensor(tensor)) continue;
    std::string data(tensor.data.begin(), tensor.data.end());
    data.resize(tensor.row_bytes() * tensor.rows());
    EXPECT_TRUE(writer.AddTensor(tensor.name, *tensor.format, tensor.dims, data).ok());
  }
  return writer.Bytes();
}

std::string Refusal(const Changes& changes, const TinyModelOptions& options = SmallOptions()) {
  const auto config = Derive(Rewrite(TinyBytes(options), changes));
  EXPECT_FALSE(config.ok());
  const std::string message(config.status().message());
  EXPECT_THAT(message, HasSubstr("test.gguf: "));
  return message;
}

Changes With(const std::string& key, GgufValue value) {
  Changes changes;
  changes.value = [key](const std::string& k, GgufValue&) { return k != key; };
  changes.more.emplace_back(key, std::move(value));
  return changes;
}

Changes Without(const std::string& key) {
  Changes changes;
  changes.value = [key](const std::string& k, GgufValue&) { return k != key; };
  return changes;
}

Changes WithoutTensor(const std::string& name) {
  Changes changes;
  changes.tensor = [name](GgufTensor& tensor) { return tensor.name != name; };
  return changes;
}

TEST(ModelConfig, TheTinyModelIsAsAsked) {
  TinyModelOptions options = SmallOptions();
  options.layers = 3;
  options.value_dim = 24;
  options.trained_context = 2048;
  const auto config = Derive(TinyBytes(options));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_EQ(config->layers, 3);
  EXPECT_EQ(config->hidden, 64);
  EXPECT_EQ(config->query_heads, 4);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->dk, 16);
  EXPECT_EQ(config->dv, 24);
  EXPECT_EQ(config->ffn, 96);
  EXPECT_EQ(config->vocab, 512);
  EXPECT_EQ(config->trained_context, 2048);
  EXPECT_TRUE(config->tied_output);
  EXPECT_EQ(config->rope_scaling, "none");
  EXPECT_EQ(config->rope.front().pairing, RopePairing::kInterleaved);
  EXPECT_TRUE(config->warnings.empty());
}

TEST(ModelConfig, HeadDimFromHiddenWhenTheFileDoesNotSay) {
  Changes changes;
  changes.value = [](const std::string& key, GgufValue&) {
    return key != "llama.attention.key_length" && key != "llama.attention.value_length";
  };
  const auto config = Derive(Rewrite(TinyBytes(SmallOptions()), changes));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->dk, 16);
  EXPECT_EQ(config->dv, 16);
}

TEST(ModelConfig, Qwen2PairsHalves) {
  TinyModelOptions options = SmallOptions();
  options.architecture = "qwen2";
  const auto config = Derive(TinyBytes(options));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope.front().pairing, RopePairing::kHalfSplit);
}

TEST(F13_HeadSizes, EveryEvenSizeIsDerivedOddOnesAreRefused) {
  for (const int head_dim : {64, 80, 96, 100, 112, 128, 192}) {
    TinyModelOptions options = SmallOptions();
    options.head_dim = head_dim;
    options.value_dim = head_dim == 192 ? 128 : 0;
    const auto config = Derive(TinyBytes(options));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->dk, head_dim);
    EXPECT_EQ(config->rope.front().planes(), head_dim / 2);
    EXPECT_EQ(config->dv, head_dim == 192 ? 128 : head_dim);
  }
  EXPECT_THAT(Refusal(With("llama.attention.key_length", uint32_t{15})),
              HasSubstr("attn_q.weight"));
}

TEST(F20_OutputHead, AbsentMeansTied) {
  EXPECT_TRUE(Derive(TinyBytes(SmallOptions()))->tied_output);
  EXPECT_TRUE(Derive(Rewrite(TinyBytes(SmallOptions()), With("llama.tie_word_embeddings", true)))
                  ->tied_output);
}

TEST(F20_OutputHead, AbsentAndDeclaredSeparateIsRefused) {
  EXPECT_THAT(Refusal(With("llama.tie_word_embeddings", false)),
              HasSubstr("tensor 'output.weight' is missing"));
}

TEST(F20_OutputHead, PresentIsUsedAndADifferenceIsSaid) {
  TinyModelOptions options = SmallOptions();
  options.output = TinyOutput::kOwn;
  EXPECT_FALSE(Derive(TinyBytes(options))->tied_output);
  const auto differs = Derive(Rewrite(TinyBytes(options), With("llama.tie_word_embeddings", true)));
  ASSERT_TRUE(differs.ok()) << differs.status();
  EXPECT_FALSE(differs->tied_output);
  ASSERT_EQ(differs->warnings.size(), 1);
  EXPECT_THAT(differs->warnings.front(), HasSubstr("'output.weight' differs"));
  options.output = TinyOutput::kCopy;
  const auto same = Derive(Rewrite(TinyBytes(options), With("llama.tie_word_embeddings", true)));
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_TRUE(same->warnings.empty());
}

TEST(F24_TrainedContext, AbsentZeroAndHugeAreHandled) {
  TinyModelOptions options = SmallOptions();
  for (const int64_t declared : {int64_t{0}, int64_t{1'000'000'000}}) {
    options.trained_context = declared;
    EXPECT_EQ(Derive(TinyBytes(options))->trained_context, declared);
  }
  options.trained_context = -1;
  EXPECT_EQ(Derive(TinyBytes(options))->trained_context, 0);
  EXPECT_THAT(Refusal(With("llama.context_length", int64_t{-5})),
              HasSubstr("'llama.context_length' is -5"));
}

TEST(F11_Shape, KeysAreRequiredAndInRange) {
  EXPECT_THAT(Refusal(With("general.architecture", std::string("mamba"))), HasSubstr("'mamba'"));
  EXPECT_THAT(Refusal(Without("general.architecture")),
              HasSubstr("'general.architecture' is missing"));
  for (const char* key :
       {"llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
        "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon"}) {
    EXPECT_THAT(Refusal(Without(key)), HasSubstr(absl::StrCat("'", key, "' is missing")));
  }
  EXPECT_THAT(Refusal(With("llama.block_count", uint32_t{0})),
              HasSubstr("'llama.block_count' is 0"));
  EXPECT_THAT(Refusal(With("llama.block_count", uint64_t{1} << 62)),
              HasSubstr("'llama.block_count'"));
  EXPECT_THAT(Refusal(With("llama.block_count", uint32_t{3})),
              HasSubstr("'blk.2.attn_norm.weight' is missing"));
  EXPECT_THAT(Refusal(With("llama.block_count", uint32_t{1})),
              HasSubstr("'blk.1.attn_norm.weight' has no part"));
  EXPECT_THAT(Refusal(With("llama.attention.head_count", uint32_t{0})),
              HasSubstr("'llama.attention.head_count' is 0"));
  EXPECT_THAT(Refusal(With("llama.attention.head_count_kv", uint32_t{3})),
              HasSubstr("does not divide"));
  EXPECT_THAT(Refusal(With("llama.attention.head_count_kv", uint32_t{8})),
              HasSubstr("head_count_kv' is 8; 1 to 4"));
  EXPECT_THAT(Refusal(With("llama.rope.dimension_count", uint32_t{18})),
              HasSubstr("dimension_count' is 18; 2 to 16"));
  EXPECT_THAT(Refusal(With("llama.attention.layer_norm_rms_epsilon", -1e-5f)),
              HasSubstr("rms_epsilon"));
}

TEST(F11_Shape, TensorsMustBeThereWithTheirShape) {
  for (const char* name : {"token_embd.weight", "output_norm.weight", "blk.1.attn_k.weight",
                           "blk.0.ffn_down.weight"}) {
    EXPECT_THAT(Refusal(WithoutTensor(name)),
                HasSubstr(absl::StrCat("tensor '", name, "' is missing")));
  }
  Changes turned;
  turned.tensor = [](GgufTensor& tensor) {
    if (tensor.name == "blk.1.attn_k.weight") tensor.dims = {32, 64};
    return true;
  };
  EXPECT_THAT(
      Refusal(turned),
      HasSubstr("'blk.1.attn_k.weight' has shape [32, 64], the header's numbers ask for [64, 32]"));
  Changes unknown;
  unknown.tensor = [](GgufTensor& tensor) {
    if (tensor.name == "blk.0.ffn_norm.weight") tensor.name = "blk.0.attn_q_norm.weight";
    return true;
  };
  EXPECT_THAT(Refusal(unknown), HasSubstr("'blk.0.ffn_norm.weight' is missing"));
}

TEST(F21_Attention, UnknownKindsAreRefused) {
  const std::pair<const char*, GgufValue> keys[] = {
      {"llama.expert_count", uint32_t{8}}, {"llama.attention.causal", false},
      {"llama.attention.clamp_kqv", 8.0f}, {"llama.attention.max_alibi_bias", 8.0f},
      {"llama.logit_scale", 0.5f},         {"llama.attention.sliding_window", uint32_t{512}},
      {"llama.attention.scale", 0.1f},     {"llama.attn_logit_softcapping", 50.0f}};
  for (const auto& [key, value] : keys) EXPECT_THAT(Refusal(With(key, value)), HasSubstr(key));
  // Neutral values of the same keys change nothing.
  Changes neutral;
  neutral.more = {{"llama.expert_count", uint32_t{0}},
                  {"llama.attention.causal", true},
                  {"llama.attention.scale", 0.25f},
                  {"llama.attention.sliding_window", uint32_t{8192}}};
  EXPECT_TRUE(Derive(Rewrite(TinyBytes(SmallOptions()), neutral)).ok());
}

TEST(F21_Attention, PerLayerHeadsMustAgree) {
  const auto per_layer = [](std::vector<int32_t> heads) {
    auto array = std::make_shared<GgufArray>();
    array->element_type = 5;
    array->values.assign(heads.begin(), heads.end());
    return With("llama.attention.head_count_kv", array);
  };
  EXPECT_THAT(Refusal(per_layer({2, 4})), HasSubstr("head_count_kv' differs between layers"));
  const auto config = Derive(Rewrite(TinyBytes(SmallOptions()), per_layer({2, 2})));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->kv_heads, 2);
}

TEST(ModelConfig, VocabularyAndEmbeddingMustFit) {
  const auto with_tokens = [](int count) {
    auto array = std::make_shared<GgufArray>();
    array->element_type = 8;
    array->values.assign(count, std::string("x"));
    return With("tokenizer.ggml.tokens", array);
  };
  EXPECT_THAT(Refusal(with_tokens(513)), HasSubstr("'tokenizer.ggml.tokens' has 513 tokens"));
  const auto config = Derive(Rewrite(TinyBytes(SmallOptions()), with_tokens(500)));
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->warnings.size(), 1);
  EXPECT_THAT(config->warnings.front(), HasSubstr("12 rows of 'token_embd.weight'"));
}

}  // namespace
}  // namespace kvring
