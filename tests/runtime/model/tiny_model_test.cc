// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/tiny_model.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/model/tensor_reader.h"
#include "runtime/model/tiny_vocab.h"
#include "tests/runtime/model/model_files.h"

namespace kvring {
namespace {

using testing::HasSubstr;

uint64_t Fnv1a(const std::string& bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

std::vector<float> Floats(const GgufFile& file, const std::string& name) {
  const auto floats = ReadFloats(file, {name});
  EXPECT_TRUE(floats.ok()) << floats.status();
  return floats.ok() ? *floats : std::vector<float>();
}

// The bytes are part of what tests on several machines compare: this number changes only when the generator is meant to.
TEST(TinyModel, TheSameBytesEverywhere) {
  const std::string bytes = TinyBytes(SmallOptions());
  EXPECT_EQ(bytes, TinyBytes(SmallOptions()));
  EXPECT_EQ(Fnv1a(bytes), 2596066511829386567u);
}

TEST(TinyModel, SeedsAndTensorsDiffer) {
  TinyModelOptions options = SmallOptions();
  const std::string one = TinyBytes(options);
  options.seed = 2;
  const std::string two = TinyBytes(options);
  const auto a = ParseBytes(one), b = ParseBytes(two);
  const auto q0 = Floats(*a, "blk.0.attn_q.weight");
  EXPECT_NE(q0, Floats(*b, "blk.0.attn_q.weight"));
  EXPECT_NE(q0, Floats(*a, "blk.1.attn_q.weight"));
}

// Mean 0 within 5 standard errors, deviation 1/sqrt(fan-in) within 5 standard errors of a deviation.
TEST(TinyModel, WeightsAreScaledToFanIn) {
  const std::string bytes = TinyBytes(TinyModelOptions());
  const auto file = ParseBytes(bytes);
  for (const char* name : {"blk.0.attn_v.weight", "blk.1.ffn_up.weight"}) {
    const std::vector<float> x = Floats(*file, name);
    const double n = static_cast<double>(x.size());
    double sum = 0.0, squares = 0.0;
    for (const float v : x) sum += v, squares += double{v} * v;
    const double deviation = 1.0 / std::sqrt(static_cast<double>(file->FindTensor(name)->row()));
    EXPECT_LT(std::abs(sum / n), 5.0 * deviation / std::sqrt(n)) << name;
    EXPECT_NEAR(std::sqrt(squares / n) / deviation, 1.0, 5.0 / std::sqrt(2.0 * n)) << name;
  }
}

// Rounding to 11 bits: half an ulp, 2^-11 relative. To 8 bits: half a step of the block's largest / 127, plus the fp16
// rounding of the step (2^-11 of at most 127 steps).
TEST(TinyModel, TypesHoldTheSameNumbers) {
  TinyModelOptions options = SmallOptions();
  const std::string f32_bytes = TinyBytes(options);
  const std::vector<float> exact = Floats(*ParseBytes(f32_bytes), "blk.0.ffn_up.weight");
  options.weight_type = "f16";
  const std::string f16_bytes = TinyBytes(options);
  const std::vector<float> half = Floats(*ParseBytes(f16_bytes), "blk.0.ffn_up.weight");
  options.weight_type = "q8_0";
  const std::string q8_bytes = TinyBytes(options);
  const std::vector<float> q8 = Floats(*ParseBytes(q8_bytes), "blk.0.ffn_up.weight");
  for (size_t i = 0; i < exact.size(); ++i) {
    ASSERT_NEAR(half[i], exact[i], std::abs(exact[i]) * 0x1p-11f + 0x1p-25f)
        << i;  // 2^-25: subnormal halves
    float largest = 0.0f;
    for (size_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j)
      largest = std::max(largest, std::abs(exact[j]));
    ASSERT_NEAR(q8[i], exact[i], largest * (0.5f / 127.0f + 0x1p-11f)) << i;
  }
}

// F22. Keys of layer 0 before RoPE, by hand: the sink token's are about 30 times as long as any other token's.
TEST(F22_SinkToken, ItsKeysAreThirtyTimesTheRest) {
  TinyModelOptions options;
  options.sink_scale = 30.0f;
  const std::string bytes = TinyBytes(options);
  const auto file = ParseBytes(bytes);
  const auto embedding = Floats(*file, "token_embd.weight"),
             norm = Floats(*file, "blk.0.attn_norm.weight");
  const auto weights = Floats(*file, "blk.0.attn_k.weight");
  const auto key_norm = [&](int token) {
    const float* x = embedding.data() + token * options.hidden;
    double squares = 0.0, key_squares = 0.0;
    for (int i = 0; i < options.hidden; ++i) squares += double{x[i]} * x[i];
    const double rms = std::sqrt(squares / options.hidden + 1e-5);
    for (int r = 0; r < options.kv_heads * options.head_dim; ++r) {
      double sum = 0.0;
      for (int i = 0; i < options.hidden; ++i)
        sum += x[i] / rms * norm[i] * weights[r * options.hidden + i];
      key_squares += sum * sum;
    }
    return std::sqrt(key_squares);
  };
  double rest = 0.0;
  for (int token = 100; token < 120; ++token) rest += key_norm(token) / 20.0;
  // Both norms are of 128 random numbers: 6 % each at one deviation; norm weight and spread of single tokens add as much.
  EXPECT_NEAR(key_norm(options.sink_token) / rest, 30.0, 10.0);
  // Nothing writes to the sink's channel, so it stays the token's own through all layers.
  for (const char* name : {"blk.0.attn_output.weight", "blk.1.ffn_down.weight"}) {
    const auto into = Floats(*file, name);
    for (int64_t i = 0; i < file->FindTensor(name)->row(); ++i) ASSERT_EQ(into[i], 0.0f);
  }
}

TEST(F22_KeyBias, ThreeChannelsOfEveryHead) {
  TinyModelOptions options;
  options.key_bias = 40.0f;
  const std::string bytes = TinyBytes(options);
  const auto bias = Floats(*ParseBytes(bytes), "blk.1.attn_k.bias");
  ASSERT_EQ(bias.size(), 128);
  for (int head = 0; head < 2; ++head) {
    EXPECT_EQ(std::count(bias.begin() + head * 64, bias.begin() + head * 64 + 64, 40.0f), 3);
    EXPECT_EQ(std::count(bias.begin() + head * 64, bias.begin() + head * 64 + 64, 0.0f), 61);
  }
}

TEST(TinyModel, OptionsThatCannotBeAreNamed) {
  const auto refusal = [](void (*change)(TinyModelOptions&)) {
    TinyModelOptions options = SmallOptions();
    change(options);
    const auto made = MakeTinyModel(options);
    EXPECT_FALSE(made.ok());
    return std::string(made.status().message());
  };
  EXPECT_THAT(refusal([](TinyModelOptions& o) { o.layers = 0; }), HasSubstr("layers is 0"));
  EXPECT_THAT(refusal([](TinyModelOptions& o) { o.kv_heads = 3; }), HasSubstr("3 KV heads"));
  EXPECT_THAT(refusal([](TinyModelOptions& o) { o.head_dim = 15; }), HasSubstr("odd"));
  EXPECT_THAT(refusal([](TinyModelOptions& o) { o.vocab = 100; }), HasSubstr("vocab is 100"));
  EXPECT_THAT(refusal([](TinyModelOptions& o) { o.weight_type = "q4_0"; }), HasSubstr("'q4_0'"));
  EXPECT_THAT(refusal([](TinyModelOptions& o) { o.architecture = "gpt2"; }), HasSubstr("'gpt2'"));
  EXPECT_THAT(refusal([](TinyModelOptions& o) { o.rope_scaling = "ntk"; }), HasSubstr("'ntk'"));
  EXPECT_THAT(refusal([](TinyModelOptions& o) { o.sink_token = 512; }), HasSubstr("512"));
  EXPECT_THAT(refusal([](TinyModelOptions& o) { o.hidden = 72, o.weight_type = "q8_0"; }),
              HasSubstr("rows of 72"));
}

}  // namespace
}  // namespace kvring
