// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/text/utf8.h"
#include "tests/runtime/text/test_vocab.h"

namespace kvring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kNames[] = {"smollm", "gpt-2", "llama-bpe", "qwen2"};

std::vector<std::string> Pieces(const PreTokenizer& pre, const std::string& text) {
  PreTokenizer::Scratch scratch;
  std::vector<std::string> pieces;
  const auto status =
      pre.Split(text.data(), text.size(), scratch,
                [&](const char* piece, size_t bytes) { pieces.emplace_back(piece, bytes); });
  EXPECT_TRUE(status.ok()) << status;
  return pieces;
}

TEST(PreTokenizer, CutsAsTheModelsOwnTokenizersDo) {
  const nlohmann::json cases = Golden("pieces.json");
  ASSERT_GT(cases.size(), 80u);
  for (const char* name : kNames) {
    const auto pre = PreTokenizer::Create(name);
    ASSERT_TRUE(pre.ok()) << pre.status();
    for (const auto& c : cases) {
      std::vector<size_t> lengths;
      for (const std::string& piece : Pieces(**pre, c["text"])) lengths.push_back(piece.size());
      EXPECT_EQ(lengths, c[name].get<std::vector<size_t>>()) << name << ": " << c["text"];
    }
  }
}

TEST(PreTokenizer, LaterPatternsSeeEachPieceAlone) {
  // GPT-2 keeps the last space for the number; with numerals cut out first, the spaces end where the piece ends.
  EXPECT_THAT(Pieces(**PreTokenizer::Create("gpt-2"), "a  12"), ElementsAre("a", " ", " 12"));
  EXPECT_THAT(Pieces(**PreTokenizer::Create("smollm"), "a  12"), ElementsAre("a", "  ", "1", "2"));
}

TEST(PreTokenizer, LongRunsStayWithinTheLimits) {
  constexpr size_t kBytes = 1 << 20;
  for (const char* name : kNames) {
    const auto pre = PreTokenizer::Create(name);
    for (const std::string unit :
         {" ", "\n", "\t ", "a", "1", "!", "\u4e2d", "\u00a0", "'", "'s"}) {
      std::string text = "x";
      while (text.size() < kBytes) text += unit;
      std::string joined;
      for (const std::string& piece : Pieces(**pre, text + "x")) joined += piece;
      EXPECT_EQ(joined, text + "x") << name << " '" << unit << "'";
    }
  }
}

TEST(PreTokenizer, UnknownNamesAreRefusedWithTheKnownOnes) {
  for (const char* name : {"", "tekken", "Smollm"}) {
    const auto status = PreTokenizer::Create(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("smollm, gpt-2, llama-bpe, qwen2"));
  }
}

}  // namespace
}  // namespace kvring
