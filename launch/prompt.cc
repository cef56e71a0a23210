// SPDX-License-Identifier: Apache-2.0
#include "launch/prompt.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "runtime/text/chat_template.h"

namespace kvring {
namespace {

absl::StatusOr<Prompt> PromptFromIds(const std::string& path) {
  KVRING_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  std::istringstream words(text);
  Prompt prompt;
  prompt.form = "ids";
  prompt.rule = "token ids as given";
  for (std::string word; words >> word;) {
    errno = 0;
    char* end = nullptr;
    const long id = std::strtol(word.c_str(), &end, 10);
    if (*end != '\0' || errno != 0 || id < 0 || id > INT32_MAX) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": '", word, "' is no token id"));
    }
    prompt.ids.push_back(static_cast<int32_t>(id));
  }
  if (prompt.ids.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": no token ids"));
  return prompt;
}

absl::StatusOr<std::string> ReadDocuments(const std::vector<std::string>& files) {
  std::string text;
  for (const std::string& file : files) {
    KVRING_ASSIGN_OR_RETURN(const std::string document, ReadTextFile(file));
    if (!text.empty()) text += "\n\n";
    text += document;
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::string text;
  if (path == "-") {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
    }
    // By read: a stream iterator throws on a folder.
    char buffer[65536];
    while (file.read(buffer, sizeof(buffer)) || file.gcount() > 0)
      text.append(buffer, file.gcount());
    if (file.bad()) {
      return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": is it a folder?"));
    }
  }
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is empty: there is nothing to read"));
  }
  const size_t nul = text.find('\0');
  if (nul != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is no text: byte ", nul, " of ",
                                                   text.size(),
                                                   " is NUL (a binary file, or UTF-16?)"));
  }
  return text;
}

absl::StatusOr<Prompt> MakePrompt(const PromptFlags& flags, const VocabData& vocab,
                                  const Tokenizer& tokenizer) {
  if (!flags.ids_file.empty()) return PromptFromIds(flags.ids_file);
  KVRING_ASSIGN_OR_RETURN(std::string text, ReadDocuments(flags.files));
  if (text.empty() && flags.question.empty()) {
    return absl::InvalidArgumentError(
        "nothing to read: give a text with -f FILE, a question with -p TEXT, or both");
  }
  if (!text.empty() && !flags.question.empty()) text += "\n\n";
  text += flags.question;
  std::vector<Segment> segments = {{text, false}};
  Prompt prompt;
  prompt.form = "raw";
  if (!flags.raw) {
    KVRING_ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplate::Recognize(vocab));
    KVRING_ASSIGN_OR_RETURN(segments, chat.Render({{"user", text}}, true));
    prompt.form = chat.family();
  }
  KVRING_ASSIGN_OR_RETURN(EncodeResult encoded, tokenizer.EncodeSegments(segments));
  prompt.ids = std::move(encoded.ids);
  prompt.rule = encoded.rule;
  prompt.warnings = std::move(encoded.warnings);
  if (encoded.invalid_bytes > 0) {
    prompt.warnings.push_back(absl::StrCat(
        encoded.invalid_bytes, " bytes of the text are not UTF-8 and were read as single bytes"));
  }
  if (encoded.dropped_bytes > 0) {
    prompt.warnings.push_back(
        absl::StrCat(encoded.dropped_bytes,
                     " bytes of the text are not in the model's vocabulary and were left out"));
  }
  return prompt;
}

}  // namespace kvring
