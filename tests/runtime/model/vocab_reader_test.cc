// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/vocab_reader.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/model/gguf_writer.h"
#include "runtime/model/tiny_vocab.h"
#include "tests/runtime/model/model_files.h"

namespace kvring {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Refusal(const GgufWriter& writer) {
  const std::string bytes = writer.Bytes();
  const auto vocab = ReadVocab(*ParseBytes(bytes));
  EXPECT_FALSE(vocab.ok());
  EXPECT_THAT(std::string(vocab.status().message()), HasSubstr("test.gguf: key '"));
  return std::string(vocab.status().message());
}

GgufWriter ThreeTokens() {
  GgufWriter writer;
  writer.Set("tokenizer.ggml.model", std::string("gpt2"));
  writer.SetStrings("tokenizer.ggml.tokens", {"a", "b", "ab"});
  return writer;
}

TEST(VocabReader, AbsentKeysStayAbsent) {
  GgufWriter writer = ThreeTokens();
  const std::string bytes = writer.Bytes();
  const auto vocab = ReadVocab(*ParseBytes(bytes));
  ASSERT_TRUE(vocab.ok()) << vocab.status();
  EXPECT_THAT(vocab->tokens, ElementsAre("a", "b", "ab"));
  EXPECT_THAT(vocab->types,
              ElementsAre(TokenType::kNormal, TokenType::kNormal, TokenType::kNormal));
  EXPECT_EQ(vocab->pre, "");
  EXPECT_TRUE(vocab->merges.empty());
  EXPECT_EQ(vocab->bos, -1);
  EXPECT_EQ(vocab->eot, -1);
  EXPECT_FALSE(vocab->add_bos.has_value());
  EXPECT_FALSE(vocab->add_eos.has_value());
}

TEST(VocabReader, EverythingIsRead) {
  GgufWriter writer = ThreeTokens();
  writer.Set("tokenizer.ggml.pre", std::string("qwen2"));
  writer.SetInts("tokenizer.ggml.token_type", {1, 3, 6});
  writer.SetFloats("tokenizer.ggml.scores", {0.0f, -1.0f, -2.0f});
  writer.SetStrings("tokenizer.ggml.merges", {"a b"});
  writer.Set("tokenizer.ggml.bos_token_id", uint32_t{0});
  writer.Set("tokenizer.ggml.eot_token_id", uint32_t{2});
  writer.Set("tokenizer.ggml.add_bos_token", true);
  writer.Set("tokenizer.ggml.add_eos_token", false);
  writer.Set("tokenizer.chat_template", std::string("{{ x }}"));
  const std::string bytes = writer.Bytes();
  const auto vocab = ReadVocab(*ParseBytes(bytes));
  ASSERT_TRUE(vocab.ok()) << vocab.status();
  EXPECT_THAT(vocab->types, ElementsAre(TokenType::kNormal, TokenType::kControl, TokenType::kByte));
  EXPECT_THAT(vocab->scores, ElementsAre(0.0f, -1.0f, -2.0f));
  EXPECT_THAT(vocab->merges, ElementsAre("a b"));
  EXPECT_EQ(vocab->bos, 0);
  EXPECT_EQ(vocab->eot, 2);
  EXPECT_EQ(vocab->add_bos, std::optional<bool>(true));
  EXPECT_EQ(vocab->add_eos, std::optional<bool>(false));
  EXPECT_EQ(vocab->chat_template, "{{ x }}");
}

TEST(F11_Vocabulary, WrongListsAndIdsAreRefused) {
  EXPECT_THAT(Refusal(GgufWriter()), HasSubstr("'tokenizer.ggml.model' is missing"));
  GgufWriter no_tokens;
  no_tokens.Set("tokenizer.ggml.model", std::string("gpt2"));
  EXPECT_THAT(Refusal(no_tokens), HasSubstr("'tokenizer.ggml.tokens' is missing"));
  GgufWriter types = ThreeTokens();
  types.SetInts("tokenizer.ggml.token_type", {1, 1});
  EXPECT_THAT(Refusal(types), HasSubstr("has 2 elements for 3 tokens"));
  GgufWriter kind = ThreeTokens();
  kind.SetInts("tokenizer.ggml.token_type", {1, 7, 1});
  EXPECT_THAT(Refusal(kind), HasSubstr("is 7 for token 1"));
  GgufWriter merges = ThreeTokens();
  merges.SetInts("tokenizer.ggml.merges", {1});
  EXPECT_THAT(Refusal(merges), HasSubstr("is not an array of strings"));
  GgufWriter scalar = ThreeTokens();
  scalar.Set("tokenizer.ggml.merges", 1.0f);
  EXPECT_THAT(Refusal(scalar), HasSubstr("is not an array"));
  GgufWriter bos = ThreeTokens();
  bos.Set("tokenizer.ggml.bos_token_id", uint32_t{3});
  EXPECT_THAT(Refusal(bos), HasSubstr("'tokenizer.ggml.bos_token_id' is 3; 0 to 2"));
}

// Each merge joins two tokens that exist into one that exists, and its parts were made by earlier merges or are bytes.
TEST(TinyVocab, IsComplete) {
  const TinyVocab vocab = MakeTinyVocab(512);
  ASSERT_EQ(vocab.tokens.size(), 512);
  ASSERT_EQ(vocab.types.size(), 512);
  EXPECT_EQ(vocab.merges.size(), 512 - TinyVocab::kLeast);
  std::set<std::string> made(vocab.tokens.begin() + TinyVocab::kControls,
                             vocab.tokens.begin() + TinyVocab::kLeast);
  EXPECT_EQ(made.size(), 256);
  EXPECT_TRUE(made.contains("\xc4\xa0"));  // the space, U+0120
  EXPECT_TRUE(made.contains("\xc4\x80"));  // the zero byte, U+0100
  EXPECT_TRUE(made.contains(
      "\xc5\x83"));  // byte AD, the last of the 68 without a spelling of their own: U+0143
  for (size_t i = 0; i < vocab.merges.size(); ++i) {
    const size_t space = vocab.merges[i].find(' ');
    const std::string left = vocab.merges[i].substr(0, space),
                      right = vocab.merges[i].substr(space + 1);
    EXPECT_TRUE(made.contains(left) && made.contains(right)) << vocab.merges[i];
    EXPECT_EQ(vocab.tokens[TinyVocab::kLeast + i], left + right);
    EXPECT_TRUE(made.insert(left + right).second) << "twice: " << left + right;
  }
}

TEST(TinyVocab, OtherSizes) {
  EXPECT_TRUE(MakeTinyVocab(259).merges.empty());
  const TinyVocab large = MakeTinyVocab(4096);
  EXPECT_EQ(large.tokens.size(), 4096);
  EXPECT_EQ(large.types.back(), 5);
  EXPECT_EQ(std::set<std::string>(large.tokens.begin(), large.tokens.end()).size(), 4096);
}

}  // namespace
}  // namespace kvring
