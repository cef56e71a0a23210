// SPDX-License-Identifier: Apache-2.0
// F10: a declared scaling of RoPE is applied, or the load is refused.
#include "runtime/model/rope_config.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/model/gguf_writer.h"
#include "runtime/model/model_config.h"
#include "tests/runtime/model/model_files.h"

namespace kvring {
namespace {

using testing::HasSubstr;

// base^(-2i/64) for base 500000 under the three-band formula with factor 32, low 1, high 4, original length 8192, in double
// (Python: wavelengths 2 pi / f below 2048 keep f, above 8192 take f / 32, between them a mix linear in 8192 / wavelength).
constexpr double kLlama3[32] = {
    1.000000000000e+00, 6.636012376961e-01, 4.403666026718e-01, 2.922278225730e-01,
    1.939227447487e-01, 1.286873734327e-01, 8.539710028577e-02, 5.666962144529e-02,
    3.760603093086e-02, 2.495540867056e-02, 1.656044008099e-02, 1.098952853454e-02,
    7.292664737217e-03, 4.839421345720e-03, 3.211445994753e-03, 1.290547928209e-03,
    4.295567965594e-04, 9.708287802628e-05, 1.946163818483e-05, 1.291476718705e-05,
    8.570255489881e-06, 5.687232150457e-06, 3.774054294108e-06, 2.504467100702e-06,
    1.661967467795e-06, 1.102883668640e-06, 7.318749675440e-07, 4.856731343010e-07,
    3.222932930379e-07, 2.138742281611e-07, 1.419272025190e-07, 9.418306725435e-08};

void ExpectLlama3(const RopeTable& table) {
  ASSERT_EQ(table.planes(), 32);
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(table.inv_freq[i] / kLlama3[i], 1.0, 1e-6) << i;
}

TinyModelOptions Llama3Model() {
  TinyModelOptions options = SmallOptions();
  options.head_dim = 64;
  options.rope_base = 500000.0;
  options.rope_scaling = "llama3";
  return options;
}

RopeFound Derive(const GgufWriter& writer, int head_dim, int64_t trained) {
  const std::string bytes = writer.Bytes();
  const auto file = ParseBytes(bytes);
  const auto found =
      DeriveRope({file.get(), "llama", RopePairing::kInterleaved, head_dim, trained});
  EXPECT_TRUE(found.ok()) << found.status();
  return found.ok() ? *found : RopeFound();
}

std::string Refusal(const GgufWriter& writer, int head_dim = 64) {
  const std::string bytes = writer.Bytes();
  const auto file = ParseBytes(bytes);
  const auto found = DeriveRope({file.get(), "llama", RopePairing::kInterleaved, head_dim, 0});
  EXPECT_FALSE(found.ok());
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("test.gguf: "));
  return std::string(found.status().message());
}

TEST(F10_Llama3Scaling, FactorTensorGivesTheFormulasFrequencies) {
  const std::string bytes = TinyBytes(Llama3Model());
  const auto file = ParseBytes(bytes);
  ASSERT_NE(file->FindTensor("rope_freqs.weight"), nullptr);
  const auto config = DeriveModelConfig(*file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_scaling, "llama3 factors");
  ASSERT_EQ(config->rope.size(), 2);
  for (const RopeTable& table : config->rope) ExpectLlama3(table);
}

TEST(F10_Llama3Scaling, ParametersGiveTheSameFrequencies) {
  GgufWriter writer;
  writer.Set("llama.rope.freq_base", 500000.0f);
  writer.Set("llama.rope.scaling.type", std::string("llama3"));
  writer.Set("llama.rope.scaling.factor", 32.0f);
  writer.Set("llama.rope.scaling.low_freq_factor", 1.0f);
  writer.Set("llama.rope.scaling.high_freq_factor", 4.0f);
  writer.Set("llama.rope.scaling.original_context_length", uint32_t{8192});
  ExpectLlama3(Derive(writer, 64, 131072).table);
}

TEST(F10_Scaling, NoneKeepsTheBase) {
  GgufWriter writer;
  writer.Set("llama.rope.freq_base", 100000.0f);
  const RopeFound found = Derive(writer, 64, 8192);
  EXPECT_EQ(found.scaling, "none");
  for (int i = 0; i < 32; ++i) {
    EXPECT_NEAR(found.table.inv_freq[i], std::pow(100000.0, -2.0 * i / 64),
                1e-15);  // double rounding
  }
}

TEST(F10_Scaling, LinearDividesEveryFrequency) {
  GgufWriter writer;
  writer.Set("llama.rope.scaling.type", std::string("linear"));
  writer.Set("llama.rope.scaling.factor", 4.0f);
  const RopeFound found = Derive(writer, 64, 8192);
  EXPECT_EQ(found.scaling, "linear");
  for (int i = 0; i < 32; ++i) {
    EXPECT_NEAR(found.table.inv_freq[i] * 4.0, std::pow(10000.0, -2.0 * i / 64), 1e-15);
  }
}

TEST(F10_Scaling, AFactorWithoutATypeIsLinear) {
  GgufWriter writer;
  writer.Set("llama.rope.scale_linear", 2.0f);
  const RopeFound found = Derive(writer, 64, 8192);
  EXPECT_EQ(found.scaling, "linear");
  EXPECT_EQ(found.table.inv_freq[0], 0.5);
}

// Base 10000, factor 4, original length 2048: the ramp runs from plane 8 (32 turns) to plane 21 (one turn). Values in
// double from the paper's formula.
TEST(F10_Scaling, YarnMixesByPlane) {
  GgufWriter writer;
  writer.Set("llama.rope.scaling.type", std::string("yarn"));
  writer.Set("llama.rope.scaling.factor", 4.0f);
  writer.Set("llama.rope.scaling.original_context_length", uint32_t{2048});
  const RopeFound found = Derive(writer, 64, 8192);
  EXPECT_EQ(found.scaling, "yarn");
  const std::pair<int, double> expected[] = {{0, 1.0},
                                             {9, 7.066310818710e-02},
                                             {10, 4.974557876684e-02},
                                             {15, 7.949839307128e-03},
                                             {20, 9.730085108210e-04},
                                             {31, 3.333803580408e-05}};
  for (const auto& [plane, value] : expected)
    EXPECT_NEAR(found.table.inv_freq[plane] / value, 1.0, 1e-9) << plane;
  EXPECT_FLOAT_EQ(found.table.attention_scale, 1.138629436f);
}

TEST(F10_Scaling, WhatCannotBeAppliedIsRefused) {
  const auto typed = [](const char* type) {
    GgufWriter writer;
    writer.Set("llama.rope.scaling.type", std::string(type));
    return writer;
  };
  EXPECT_THAT(Refusal(typed("longrope")), HasSubstr("'longrope' of key 'llama.rope.scaling.type'"));
  EXPECT_THAT(Refusal(typed("linear")), HasSubstr("llama.rope.scaling.factor"));
  EXPECT_THAT(Refusal(typed("yarn")), HasSubstr("llama.rope.scaling.factor"));
  EXPECT_THAT(Refusal(typed("llama3")), HasSubstr("llama.rope.scaling.factor"));
  GgufWriter yarn = typed("yarn");
  yarn.Set("llama.rope.scaling.factor", 4.0f);
  EXPECT_THAT(Refusal(yarn), HasSubstr("original_context_length"));
  GgufWriter llama3 = typed("llama3");
  llama3.Set("llama.rope.scaling.factor", 4.0f);
  EXPECT_THAT(Refusal(llama3), HasSubstr("rope_freqs.weight"));
  GgufWriter base;
  base.Set("llama.rope.freq_base", 0.0f);
  EXPECT_THAT(Refusal(base), HasSubstr("llama.rope.freq_base"));
  GgufWriter infinite;
  infinite.Set("llama.rope.freq_base", std::numeric_limits<float>::infinity());
  EXPECT_THAT(Refusal(infinite), HasSubstr("llama.rope.freq_base"));
  EXPECT_THAT(Refusal(GgufWriter(), 63), HasSubstr("odd"));
}

TEST(F10_Scaling, BadFactorTensorsAreRefused) {
  const auto with_factors = [](std::vector<float> factors) {
    GgufWriter writer;
    std::string bytes(reinterpret_cast<const char*>(factors.data()),
                      factors.size() * sizeof(float));
    EXPECT_TRUE(writer
                    .AddTensor("rope_freqs.weight", *FindWeightFormat(0),
                               {static_cast<int64_t>(factors.size())}, bytes)
                    .ok());
    return writer;
  };
  EXPECT_THAT(Refusal(with_factors({1, 1, 1}), 8),
              HasSubstr("'rope_freqs.weight' has 3 frequency factors, 4"));
  EXPECT_THAT(Refusal(with_factors({1, 0, 1, 1}), 8), HasSubstr("holds 0 at 1"));
  EXPECT_THAT(Refusal(with_factors({1, 1, NAN, 1}), 8), HasSubstr("holds nan at 2"));
}

}  // namespace
}  // namespace kvring
