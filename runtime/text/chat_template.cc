// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/chat_template.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "runtime/text/chat_families.h"

namespace kvring {
namespace {

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const ChatFamily* FindFamily(const std::string& program) {
  for (const ChatFamily& family : ChatFamilies()) {
    const auto occurs = [&](const char* sign) { return Has(program, sign); };
    if (std::all_of(family.signs.begin(), family.signs.end(), occurs) &&
        std::none_of(family.not_signs.begin(), family.not_signs.end(), occurs)) {
      return &family;
    }
  }
  return nullptr;
}

std::string FamilyNames() {
  return absl::StrJoin(ChatFamilies(), ", ", [](std::string* out, const ChatFamily& family) {
    out->append(family.name);
  });
}

// ChatML programs carry the default system message as a literal between the marks of its turn:
// '<|im_start|>system\nTEXT<|im_end|>', where a quote inside means that the program goes on and this is no literal.
std::string DefaultSystem(const std::string& program) {
  static const std::string kOpen = "<|im_start|>system", kClose = "<|im_end|>";
  for (size_t at = program.find(kOpen); at != std::string::npos; at = program.find(kOpen, at + 1)) {
    const size_t begin = at + kOpen.size();
    const size_t end = program.find(kClose, begin);
    if (end == std::string::npos) break;
    const std::string text =
        absl::StrReplaceAll(program.substr(begin, end - begin), {{"\\n", "\n"}});
    const bool is_literal =
        text.size() > 1 && text[0] == '\n' && text.find_first_of("'\"{}") == std::string::npos;
    if (is_literal) return text.substr(1);
  }
  return "";
}

// Llama 3.1 and later put dates before every system message; the fixed one of the program keeps renderings reproducible.
std::string DatePreface(const std::string& program) {
  static const std::string kDate = "date_string = \"",
                           kCutoff = "Cutting Knowledge Date: December 2023";
  const size_t at = program.find(kDate);
  if (at == std::string::npos || !Has(program, kCutoff)) return "";
  const size_t begin = at + kDate.size();
  const size_t end = program.find('"', begin);
  if (end == std::string::npos) return "";
  return absl::StrCat(kCutoff, "\nToday Date: ", program.substr(begin, end - begin), "\n\n");
}

std::string Spelling(const VocabData& vocab, int32_t id) {
  return id >= 0 && id < static_cast<int64_t>(vocab.tokens.size()) ? vocab.tokens[id] : "";
}

std::string Trim(const std::string& text) {
  return std::string(absl::StripAsciiWhitespace(absl::string_view(text)));
}

absl::Status CheckMessages(const std::vector<ChatMessage>& messages) {
  if (messages.empty()) return absl::InvalidArgumentError("chat: no message to render");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role == "system" && i > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("chat: message ", i, " is a system message; only the first may be"));
    }
    if (role != "system" && role != "user" && role != "assistant") {
      return absl::InvalidArgumentError(absl::StrCat("chat: message ", i, " has role '", role,
                                                     "'; known: system, user, assistant"));
    }
  }
  return absl::OkStatus();
}

// Collects segments; forms are read for their {control} spellings, contents never.
class Renderer {
 public:
  Renderer(const std::string& bos, const std::string& eos) : bos_(bos), eos_(eos) {}

  void AddForm(const std::string& form) {
    for (size_t at = 0; at < form.size();) {
      const size_t open = std::min(form.find('{', at), form.size());
      AddPlain(form.substr(at, open - at));
      if (open == form.size()) return;
      const size_t close = form.find('}', open);
      AddControl(form.substr(open + 1, close - open - 1));
      at = close + 1;
    }
  }
  void AddPlain(const std::string& text) {
    if (!text.empty()) segments_.push_back({text, false});
  }
  std::vector<Segment> Take() { return std::move(segments_); }

 private:
  void AddControl(const std::string& mark) {
    const std::string& spelling = mark == "bos" ? bos_ : mark == "eos" ? eos_ : mark;
    if (!spelling.empty()) segments_.push_back({spelling, true});
  }

  const std::string& bos_;
  const std::string& eos_;
  std::vector<Segment> segments_;
};

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Recognize(const VocabData& vocab) {
  const std::string& program = vocab.chat_template;
  if (program.empty()) {
    return absl::FailedPreconditionError(
        "the model file has no chat template (tokenizer.chat_template); --raw gives the model the "
        "text as it is");
  }
  ChatTemplate result;
  result.family_ = FindFamily(program);
  if (result.family_ == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("the model file's chat template is of no known family (known: ", FamilyNames(),
                     "); --raw gives the model the text as it is"));
  }
  result.name_ = result.family_->name;
  result.default_system_ = result.name_ == "chatml" ? DefaultSystem(program) : "";
  result.system_preface_ = result.name_ == "llama-3" ? DatePreface(program) : "";
  result.trims_ = result.family_->trims && (Has(program, "trim") || Has(program, "strip"));
  result.bos_ = Spelling(vocab, vocab.bos);
  result.eos_ = Spelling(vocab, vocab.eos);
  // Written out in the program, a begin token that is also a mark of the family (SmolLM2) is only that mark.
  const bool is_mark = std::count(ChatMarks().begin(), ChatMarks().end(), result.bos_) > 0;
  result.emits_bos_ =
      Has(program, "bos_token") || (!is_mark && !result.bos_.empty() && Has(program, result.bos_));
  result.bos_each_turn_ = result.name_ == "llama-2" && Has(program, "bos_token + '[INST]");
  return result;
}

size_t ChatTemplate::SystemPlace(const std::vector<ChatMessage>& messages) const {
  if (family_->system_style == SystemStyle::kOwnTurn) return messages.size();
  size_t place = messages.size();
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "user") continue;
    place = i;
    if (family_->system_style == SystemStyle::kFirstUser) break;
  }
  return place;
}

absl::StatusOr<std::vector<Segment>> ChatTemplate::Render(const std::vector<ChatMessage>& messages,
                                                          bool add_generation_prompt) const {
  KVRING_RETURN_IF_ERROR(CheckMessages(messages));
  const ChatFamily& family = *family_;
  const auto content = [&](size_t i) {
    return trims_ ? Trim(messages[i].content) : messages[i].content;
  };
  const size_t first = messages[0].role == "system" ? 1 : 0;
  const std::string system = system_preface_ + (first == 1 ? content(0) : default_system_);
  const bool has_system = first == 1 || !system.empty();
  const size_t system_place = SystemPlace(messages);

  Renderer renderer(bos_, eos_);
  const auto add = [&](const char* open, const std::string& text, const char* close) {
    renderer.AddForm(open);
    renderer.AddPlain(text);
    renderer.AddForm(close);
  };
  if (emits_bos_) renderer.AddForm("{bos}");
  // Where no user's turn can take it, a system message still comes first rather than getting lost.
  if (has_system && system_place == messages.size())
    add(family.system_open, system, family.system_close);
  for (size_t i = first; i < messages.size(); ++i) {
    const bool is_user = messages[i].role == "user";
    if (is_user && bos_each_turn_ && i > first) renderer.AddForm("{bos}");
    renderer.AddForm(is_user ? family.user_open : family.assistant_open);
    if (has_system && i == system_place) add(family.system_open, system, family.system_close);
    add("", content(i), is_user ? family.user_close : family.assistant_close);
  }
  if (add_generation_prompt) renderer.AddForm(family.generation);
  return renderer.Take();
}

std::string JoinSegments(const std::vector<Segment>& segments) {
  std::string text;
  for (const Segment& segment : segments) text += segment.text;
  return text;
}

}  // namespace kvring
