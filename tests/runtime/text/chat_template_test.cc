// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/text/chat_families.h"
#include "tests/runtime/text/test_vocab.h"

namespace kvring {
namespace {

using ::testing::HasSubstr;

std::vector<ChatMessage> Messages(const nlohmann::json& json) {
  std::vector<ChatMessage> messages;
  for (const auto& message : json) messages.push_back({message["role"], message["content"]});
  return messages;
}

// A vocabulary with "<s>" and "</s>" as begin and end token and every mark of the families.
VocabData MarkedVocab(const std::string& program) {
  VocabData vocab = MakeVocab("llama-bpe");
  std::vector<std::string> spellings = {"<s>", "</s>"};
  spellings.insert(spellings.end(), ChatMarks().begin(), ChatMarks().end());
  vocab.bos = static_cast<int32_t>(vocab.tokens.size());
  vocab.eos = vocab.bos + 1;
  for (const std::string& spelling : spellings) {
    if (std::count(vocab.tokens.begin(), vocab.tokens.end(), spelling) > 0) continue;
    vocab.tokens.push_back(spelling);
    vocab.types.push_back(TokenType::kControl);
  }
  vocab.chat_template = program;
  return vocab;
}

TEST(ChatTemplate, RendersEveryFamilyAsItsProgramDoes) {
  std::set<std::string> seen;
  for (const auto& c : Golden("chat_families.json")) {
    const auto chat = ChatTemplate::Recognize(MarkedVocab(c["template"]));
    ASSERT_TRUE(chat.ok()) << chat.status();
    EXPECT_EQ(chat->family(), c["family"].get<std::string>());
    seen.insert(chat->family());
    const auto segments = chat->Render(Messages(c["messages"]), true);
    ASSERT_TRUE(segments.ok()) << segments.status();
    EXPECT_EQ(JoinSegments(*segments), c["rendered"].get<std::string>()) << c["family"];
  }
  EXPECT_EQ(seen.size(), ChatFamilies().size());  // a new family brings its golden cases
}

TEST(F09, ContentsOfMessagesAreNeverControlSegments) {
  for (const auto& c : Golden("chat_families.json")) {
    const VocabData vocab = MarkedVocab(c["template"]);
    const auto tokenizer = MakeTokenizer(vocab);
    const auto controls = [&](const std::string& content) {
      const auto segments =
          *ChatTemplate::Recognize(vocab)->Render({{"system", content}, {"user", content}}, true);
      const auto ids = tokenizer->EncodeSegments(segments, {BeginToken::kNever, false})->ids;
      EXPECT_EQ(*tokenizer->Decode(ids, true), JoinSegments(segments));
      return std::count_if(ids.begin(), ids.end(),
                           [&](int32_t id) { return tokenizer->IsControl(id); });
    };
    std::string hostile = "x<s></s>";
    for (const std::string& mark : ChatMarks()) hostile += mark;
    EXPECT_EQ(controls(hostile), controls("x")) << c["family"];
  }
}

TEST(F23, ATemplateGivesOneBeginTokenWithEveryFlag) {
  for (const auto& c : Golden("chat_families.json")) {
    for (const std::optional<bool> flag :
         {std::optional<bool>(true), std::optional<bool>(false), std::optional<bool>()}) {
      VocabData vocab = MarkedVocab(c["template"]);
      vocab.add_bos = flag;
      const auto tokenizer = MakeTokenizer(vocab);
      const auto chat = ChatTemplate::Recognize(vocab);
      const auto ids = tokenizer->EncodeSegments(*chat->Render({{"user", "<s>hi"}}, true))->ids;
      const bool own = c["rendered"].get<std::string>().rfind("<s>", 0) == 0;
      EXPECT_EQ(std::count(ids.begin(), ids.end(), vocab.bos), own || flag.value_or(true) ? 1 : 0)
          << c["family"];
      EXPECT_TRUE(!own || ids.front() == vocab.bos) << c["family"];
      EXPECT_NE(ids.back(), vocab.eos);
    }
  }
}

TEST(ChatTemplate, WithoutGenerationPromptTheAssistantsTurnIsNotOpened) {
  const auto chat = ChatTemplate::Recognize(MarkedVocab("<|im_start|><|im_end|>"));
  EXPECT_EQ(JoinSegments(*chat->Render({{"user", "a"}}, false)), "<|im_start|>user\na<|im_end|>\n");
}

TEST(ChatTemplate, MissingAndUnknownTemplatesNameTheWayOut) {
  const auto missing = ChatTemplate::Recognize(MarkedVocab("")).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("--raw"));
  for (const char* program :
       {"{{ messages }}", "<|im_start|>user<|im_sep|>x<|im_end|>",
        "[gMASK]<|user|><|assistant|>eos_token", "<|start_of_role|>user<|end_of_role|>",
        "[SYSTEM_PROMPT][INST][/INST]"}) {
    const auto unknown = ChatTemplate::Recognize(MarkedVocab(program)).status();
    EXPECT_EQ(unknown.code(), absl::StatusCode::kUnimplemented) << program;
    EXPECT_THAT(std::string(unknown.message()), HasSubstr("--raw"));
    EXPECT_THAT(std::string(unknown.message()), HasSubstr("chatml"));
  }
}

TEST(ChatTemplate, RefusesMessagesThatHaveNoPlace) {
  const auto chat = ChatTemplate::Recognize(MarkedVocab("<|im_start|><|im_end|>"));
  for (const std::vector<ChatMessage>& messages : {std::vector<ChatMessage>{},
                                                   {{"user", "a"}, {"system", "b"}},
                                                   {{"tool", "a"}},
                                                   {{"user\n", "a"}}}) {
    EXPECT_EQ(chat->Render(messages, true).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(ChatTemplate, AConversationWithoutUsersKeepsItsSystemMessage) {
  const auto chat = ChatTemplate::Recognize(MarkedVocab("<start_of_turn>"));
  EXPECT_THAT(JoinSegments(*chat->Render({{"system", "Be brief."}}, true)), HasSubstr("Be brief."));
}

}  // namespace
}  // namespace kvring
