// SPDX-License-Identifier: Apache-2.0
#include "runtime/eval/needles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/runtime/eval/needle_fixture.h"

namespace kvring {
namespace {

NeedleOptions Options() {
  NeedleOptions options;
  options.texts = 3;
  options.depths = 5;
  options.length = 1500;
  return options;
}

std::vector<NeedleText> Texts(const NeedleOptions& options) {
  const auto texts = PlantNeedles(*Subject().tokenizer, Subject().ids, options);
  EXPECT_TRUE(texts.ok()) << texts.status();
  return texts.ok() ? *texts : std::vector<NeedleText>{};
}

std::string Text(const std::vector<int32_t>& ids) { return *Subject().tokenizer->Decode(ids); }

TEST(NeedlesTest, ExcerptsAreConsecutiveAndKeepEveryToken) {
  std::vector<int32_t> read;
  for (const NeedleText& text : Texts(Options())) {
    read.insert(read.end(), text.excerpt.begin(), text.excerpt.end());
    std::vector<int32_t> left = text.ids;
    for (auto needle = text.needles.rbegin(); needle != text.needles.rend(); ++needle) {
      const auto at = left.begin() + needle->position;
      EXPECT_TRUE(std::equal(needle->sentence.begin(), needle->sentence.end(), at));
      left.erase(at, at + static_cast<int64_t>(needle->sentence.size()));
    }
    EXPECT_EQ(left, text.excerpt);
  }
  ASSERT_GT(read.size(), 2000u);
  EXPECT_TRUE(std::equal(read.begin(), read.end(), Subject().ids.begin()));
}

TEST(NeedlesTest, SentencesStandAtBordersEvenlySpread) {
  for (const NeedleText& text : Texts(Options())) {
    ASSERT_EQ(text.needles.size(), 5u);
    const double n = static_cast<double>(text.excerpt.size());
    for (int j = 0; j < 5; ++j) {
      const int64_t offset = text.needles[j].offset;
      EXPECT_GE(offset, static_cast<int64_t>(n * j / 5));
      EXPECT_LE(offset, static_cast<int64_t>(n * (j + 1) / 5));
      const std::string before = Text({text.excerpt.begin(), text.excerpt.begin() + offset});
      EXPECT_NE(std::string(".!?\n").find(before.back()), std::string::npos)
          << "..." << before.substr(before.size() - 30);
    }
  }
}

TEST(NeedlesTest, TextQuestionAndAnswerFitTheLength) {
  for (const NeedleText& text : Texts(Options())) {
    size_t longest = 0;
    std::set<std::string> keys;
    for (const Needle& needle : text.needles) {
      longest = std::max(longest, needle.question.size() + needle.answer.size());
      keys.insert(needle.key);
      EXPECT_EQ(Text(needle.sentence),
                " The pass-phrase of the " + needle.key + " is " + needle.phrase + ".");
      EXPECT_EQ(Text(needle.question), "\nThe pass-phrase of the " + needle.key + " is");
      EXPECT_EQ(Text(needle.answer), " " + needle.phrase);
    }
    EXPECT_EQ(text.ids.size() + longest, 1500u);
    EXPECT_EQ(keys.size(), 5u);
  }
}

TEST(NeedlesTest, KeysStayDistinctUpToTheLimit) {
  NeedleOptions options = Options();
  options.texts = 1;
  options.depths = MaxDepths();
  options.length = 19000;
  std::set<std::string> keys;
  // 256 sentences of a tiny vocabulary's one-byte tokens are some 15,000 tokens.
  std::vector<int32_t> ids = Subject().ids;
  ids.insert(ids.end(), Subject().ids.begin(), Subject().ids.end());
  const auto texts = PlantNeedles(*Subject().tokenizer, ids, options);
  ASSERT_TRUE(texts.ok()) << texts.status();
  for (const Needle& needle : texts->front().needles) keys.insert(needle.key);
  EXPECT_EQ(static_cast<int>(keys.size()), MaxDepths());
}

TEST(NeedlesTest, TheSameSeedGivesTheSameTexts) {
  NeedleOptions options = Options();
  const auto a = Texts(options), b = Texts(options);
  options.seed = 1;
  const auto c = Texts(options);
  ASSERT_EQ(a.size(), 3u);
  for (int t = 0; t < 3; ++t) {
    EXPECT_EQ(a[t].ids, b[t].ids);
    EXPECT_NE(a[t].ids, c[t].ids);
  }
  EXPECT_NE(a[0].needles[0].phrase, a[1].needles[0].phrase);
}

TEST(NeedlesTest, ATextWithoutSentencesIsCutAtTheMiddle) {
  NeedleOptions options = Options();
  options.texts = 1;
  const std::vector<int32_t> ids(4000, Subject().tokenizer->Encode("a")->ids.back());
  const auto texts = PlantNeedles(*Subject().tokenizer, ids, options);
  ASSERT_TRUE(texts.ok()) << texts.status();
  const int64_t n = static_cast<int64_t>(texts->front().excerpt.size());
  for (int j = 0; j < 5; ++j)
    EXPECT_EQ(texts->front().needles[j].offset, (n * j / 5 + n * (j + 1) / 5) / 2);
}

TEST(NeedlesTest, RefusesWhatCannotBe) {
  const auto refused = [](NeedleOptions options, const std::string& part) {
    const auto texts = PlantNeedles(*Subject().tokenizer, Subject().ids, options);
    EXPECT_EQ(texts.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(texts.status().message()).find(part), std::string::npos)
        << texts.status();
  };
  NeedleOptions options = Options();
  options.length = 300;
  refused(options, "--length 300");
  options = Options();
  options.texts = 500;
  refused(options, "500 texts of 1500");
  options.texts = 0;
  refused(options, "--texts 0");
  options = Options();
  options.depths = MaxDepths() + 1;
  refused(options, "--depths 257");
}

}  // namespace
}  // namespace kvring
