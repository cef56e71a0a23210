// SPDX-License-Identifier: Apache-2.0
// The tokenizer of the small real model (SmolLM2-135M-Instruct) against the ids of other programs. Skipped without the file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstdlib>
#include <filesystem>

#include "runtime/model/gguf.h"
#include "runtime/model/vocab_reader.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"
#include "tests/runtime/text/test_vocab.h"

namespace kvring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RealVocab : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto path = RealModelPath();
    if (!path) return;
    const auto file = GgufFile::Open(*path);
    ASSERT_TRUE(file.ok()) << file.status();
    const auto vocab = ReadVocab(**file);
    ASSERT_TRUE(vocab.ok()) << vocab.status();
    vocab_ = *vocab;
    tokenizer_ = MakeTokenizer(vocab_);
  }
  void SetUp() override {
    if (!RealModelPath())
      GTEST_SKIP() << "no small real model: run launch/fetch_model.sh or set KVRING_TEST_MODEL";
    ASSERT_NE(tokenizer_, nullptr);
  }
  static inline VocabData vocab_;
  static inline std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(RealVocab, DifficultStringsHaveLlamaCppsIds) {
  const nlohmann::json golden = Golden("hostile.json");
  int cases = 0;
  for (const char* group : {"same", "lossy_or_differing"}) {
    for (const auto& c : golden[group]) {
      const std::string text = c["text"];
      EXPECT_EQ(tokenizer_->Encode(text)->ids, c["ids"].get<std::vector<int32_t>>()) << text;
      const auto& special = c.contains("ids_parse_special") ? c["ids_parse_special"] : c["ids"];
      EXPECT_EQ(tokenizer_->Encode(text, {BeginToken::kModelRule, true})->ids,
                special.get<std::vector<int32_t>>())
          << text;
      ++cases;
    }
  }
  EXPECT_EQ(cases, 39);
}

TEST_F(RealVocab, WhatIsNotDroppedComesBack) {
  const nlohmann::json golden = Golden("hostile.json");
  for (const auto& c : golden["same"]) {
    const std::string text = c["text"];
    const auto encoded = tokenizer_->Encode(text);
    const std::string back = *tokenizer_->Decode(encoded->ids);
    EXPECT_EQ(back.size() + encoded->dropped_bytes, text.size());
    EXPECT_TRUE(encoded->dropped_bytes > 0 || back == text) << text;
  }
}

TEST_F(RealVocab, F17InvalidBytesGiveTheirTokensOrAreCounted) {
  const auto encode = [&](const std::string& text) { return *tokenizer_->Encode(text); };
  // The lead bytes C0, C1, F1, F2, F5 to FF and eight control characters have no token in this vocabulary.
  EXPECT_EQ(encode("\xFF").dropped_bytes, 1);
  EXPECT_EQ(encode("\xC0\x80").dropped_bytes, 1);
  EXPECT_EQ(encode("\xF5\x80\x80\x80").dropped_bytes, 1);
  for (const std::string text : {"\xE6\xAD", "\xED\xA0\x80", "caf\xE9", "\xEF\xBB\xBFx"}) {
    EXPECT_EQ(encode(text).dropped_bytes, 0);
    EXPECT_EQ(*tokenizer_->Decode(encode(text).ids), text);
  }
}

TEST_F(RealVocab, ConversationsHaveTheTemplatesTextAndIds) {
  const auto chat = ChatTemplate::Recognize(vocab_);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->family(), "chatml");
  EXPECT_THAT(chat->default_system(), HasSubstr("SmolLM"));
  for (const auto& c : Golden("chat.json")) {
    std::vector<ChatMessage> messages;
    for (const auto& message : c["messages"])
      messages.push_back({message["role"], message["content"]});
    const auto segments = *chat->Render(messages, true);
    EXPECT_EQ(JoinSegments(segments), c["rendered"].get<std::string>());
    EXPECT_EQ(tokenizer_->EncodeSegments(segments)->ids,
              c["ids_parse_special"].get<std::vector<int32_t>>());
  }
}

TEST_F(RealVocab, RolesAndEnds) {
  EXPECT_EQ(tokenizer_->vocab_size(), 49152);
  EXPECT_EQ(tokenizer_->bos(), 1);
  EXPECT_EQ(tokenizer_->eos(), 2);
  EXPECT_THAT(tokenizer_->EndOfGeneration(), ElementsAre(0, 2));
  EXPECT_THAT(tokenizer_->Encode("x")->rule,
              HasSubstr("no begin token added: the file's add_bos_token is false"));
}

// XXH3-64 (seed 0) of a text and of its ids as little-endian int32. The ids were those of llama.cpp (commit 3f545bec): their
// SHA-256 were equal when these hashes were taken from them.
struct WholeText {
  const char* file;
  XXH64_hash_t text_hash;
  size_t tokens;
  XXH64_hash_t ids_hash;
};
constexpr WholeText kWholeTexts[] = {
    {"wiki.test.raw", 0x596e836d30938cc7, 303415, 0x772eecde39b7cfb4},
    {"moby-dick.txt", 0x6a2339715fe06655, 316844, 0x5f443b791566cbeb},
    {"great-expectations.txt", 0x2674c8ed20f5bce1, 262926, 0x7484363b5a0a88e9},
};

TEST_F(RealVocab, WholeTextsHaveLlamaCppsIds) {
  const char* named = std::getenv("KVRING_TEST_DATA");
  const std::filesystem::path folder = named != nullptr ? named : "../shared/data";
  for (const WholeText& whole : kWholeTexts) {
    if (!std::filesystem::exists(folder / whole.file))
      GTEST_SKIP() << "no " << whole.file << ": set KVRING_TEST_DATA";
    const std::string text = ReadWholeFile(folder / whole.file);
    ASSERT_EQ(XXH3_64bits(text.data(), text.size()), whole.text_hash)
        << whole.file << " is another text";
    const auto encoded = tokenizer_->Encode(text);
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    EXPECT_EQ(encoded->ids.size(), whole.tokens);
    EXPECT_EQ(XXH3_64bits(encoded->ids.data(), encoded->ids.size() * sizeof(int32_t)),
              whole.ids_hash)
        << whole.file;
    EXPECT_EQ(encoded->dropped_bytes, 0);
    EXPECT_EQ(*tokenizer_->Decode(encoded->ids), text);
  }
}

}  // namespace
}  // namespace kvring
