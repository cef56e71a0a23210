// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "runtime/text/byte_alphabet.h"
#include "runtime/text/tokenizer.h"
#include "tests/runtime/text/naive_bpe.h"
#include "tests/runtime/text/test_vocab.h"

namespace kvring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Merges over three letters, made as training makes them: of what is there already.
std::vector<std::string> RandomMerges(std::mt19937& rng, int count) {
  std::vector<std::string> symbols = {"a", "b", "c"}, merges;
  std::set<std::string> seen;
  while (static_cast<int>(merges.size()) < count) {
    const std::string left = symbols[rng() % symbols.size()],
                      right = symbols[rng() % symbols.size()];
    if (!seen.insert(left + " " + right).second || left.size() + right.size() > 8) continue;
    merges.push_back(left + " " + right);
    symbols.push_back(left + right);
  }
  return merges;
}

std::vector<std::string> Pieces(const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<int32_t> ids = tokenizer.Encode(text)->ids;
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(tokenizer.Piece(id));
  return pieces;
}

TEST(Bpe, EqualsTheDefinitionOnRandomMergesAndWords) {
  std::mt19937 rng(1);
  for (int round = 0; round < 40; ++round) {
    const auto merges = RandomMerges(rng, 1 + static_cast<int>(rng() % 30));
    const auto tokenizer = MakeTokenizer(MakeVocab("gpt-2", merges));
    for (int i = 0; i < 40; ++i) {
      std::string word;
      for (size_t n = 1 + rng() % 60; n > 0; --n) word += "abc"[rng() % 3];
      ASSERT_EQ(Pieces(*tokenizer, word), NaiveBpe(word, merges)) << word;
    }
  }
}

TEST(Bpe, OfEqualPairsTheLeftmostIsJoinedFirst) {
  const auto tokenizer = MakeTokenizer(MakeVocab("gpt-2", {"a a"}));
  EXPECT_THAT(Pieces(*tokenizer, "aaaaa"), ElementsAre("aa", "aa", "a"));
}

// A quadratic merge needs 10^12 steps here and ends by the test's time limit.
TEST(Bpe, LongWordsTakeNearLinearTime) {
  const auto tokenizer = MakeTokenizer(
      MakeVocab("smollm", {"a b", "ab ab", "abab abab", "x x", "xx xx", "xxxx xxxx"}));
  constexpr size_t kBytes = 1 << 20;
  std::string alternating;
  while (alternating.size() < kBytes) alternating += "ab";
  EXPECT_EQ(tokenizer->Encode(alternating)->ids.size(), kBytes / 8);
  EXPECT_EQ(tokenizer->Encode(std::string(kBytes, 'x'))->ids.size(), kBytes / 8);
  EXPECT_EQ(tokenizer->Encode(std::string(kBytes, ' '))->ids.size(), kBytes);
  // Beyond 4 MiB a word is merged in parts: "xxxx" and "x" remain.
  EXPECT_EQ(tokenizer->Encode(std::string(4 * kBytes + 5, 'x'))->ids.size(), 4 * kBytes / 8 + 2);
}

TEST(Bpe, ResultWithoutATokenFallsApartIntoItsBytes) {
  VocabData vocab = MakeVocab("gpt-2", {"a b", "ab c"});
  vocab.tokens.pop_back();  // "abc"
  vocab.types.pop_back();
  EXPECT_THAT(Pieces(*MakeTokenizer(vocab), "abcab"), ElementsAre("a", "b", "c", "ab"));
}

TEST(Bpe, WholeWordsAreTakenAsTheyAreWhereTheFamilyDoes) {
  // No merge leads to "abc" by way of "ab" first, since "b c" comes before: only a look-up of the word finds it.
  VocabData vocab = MakeVocab("llama-bpe", {"b c", "a b", "ab c"});
  EXPECT_THAT(Pieces(*MakeTokenizer(vocab), "abc"), ElementsAre("<|im_start|>", "abc"));
  vocab.pre = "gpt-2";
  EXPECT_THAT(Pieces(*MakeTokenizer(vocab), "abc"), ElementsAre("a", "bc"));
}

TEST(Bpe, RefusesMergesThatCannotBeRead) {
  for (const char* bad : {"", "ab", " ", "a ", "a \xE2\x96\x81", "a \xFF"}) {
    VocabData vocab = MakeVocab("gpt-2", {"a b"});
    vocab.merges.push_back(bad);
    const auto status = Tokenizer::Create(vocab).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("merge 1 "));
  }
}

TEST(ByteAlphabet, SpellsEveryByteAndReadsItBack) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const std::string spelling = SpellingFromBytes(all);
  EXPECT_EQ(BytesFromSpelling(spelling), all);
  EXPECT_EQ(SpellingFromBytes(" \n"), "\u0120\u010A");  // the two that everyone knows by sight
  EXPECT_EQ(BytesFromSpelling("a b"), std::nullopt);
  EXPECT_EQ(BytesFromSpelling("\u2581"), std::nullopt);
}

}  // namespace
}  // namespace kvring
