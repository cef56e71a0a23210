// SPDX-License-Identifier: Apache-2.0
// `kvring tokenize`: text to token ids and pieces. Takes any bytes, also an empty text: what a tokenizer makes of difficult
// input is what one wants to see here.
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "launch/command.h"
#include "launch/json_file.h"
#include "runtime/model/gguf.h"
#include "runtime/model/vocab_reader.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/utf8.h"

namespace kvring {
namespace {

struct TokenizeFlags {
  std::string model;
  std::vector<std::string> files;
  std::string text;
  bool ids_only = false;
  bool special = false;
  bool chat = false;
  bool bos = false;
  bool no_bos = false;
};

// Any bytes, also none. A folder opens like a file and fails when read; read() tells it without throwing.
absl::StatusOr<std::string> ReadBytes(const std::string& path) {
  std::ifstream file;
  if (path != "-") file.open(path, std::ios::binary);
  std::istream& in = path == "-" ? std::cin : file;
  std::string bytes;
  char part[1 << 16];
  while (in.good()) {
    in.read(part, sizeof(part));
    bytes.append(part, in.gcount());
  }
  if (in.eof()) return bytes;
  return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
}

// Several documents are one prompt, with an empty line between, as in `run`.
absl::StatusOr<std::string> GatherText(const TokenizeFlags& flags) {
  std::string text = flags.text;
  for (size_t i = 0; i < flags.files.size(); ++i) {
    KVRING_ASSIGN_OR_RETURN(const std::string bytes, ReadBytes(flags.files[i]));
    absl::StrAppend(&text, i > 0 ? "\n\n" : "", bytes);
  }
  return text;
}

absl::StatusOr<EncodeResult> EncodeAsAsked(const TokenizeFlags& flags, const VocabData& vocab,
                                           const Tokenizer& tokenizer, const std::string& text) {
  EncodeOptions options;
  options.parse_special = flags.special;
  if (flags.bos) options.begin = BeginToken::kAlways;
  if (flags.no_bos) options.begin = BeginToken::kNever;
  if (!flags.chat) return tokenizer.Encode(text, options);
  KVRING_ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplate::Recognize(vocab));
  KVRING_ASSIGN_OR_RETURN(const auto segments, chat.Render({{"user", text}}, true));
  return tokenizer.EncodeSegments(segments, options);
}

// A piece on one line: control characters, quotes and bytes outside UTF-8 escaped as in C.
std::string Escaped(const std::string& piece) {
  std::string out = "\"";
  for (size_t at = 0; at < piece.size();) {
    const int length = Utf8CharLength(piece.data() + at, piece.size() - at);
    const unsigned char byte = static_cast<unsigned char>(piece[at]);
    if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (byte == '"' || byte == '\\') {
      out += {'\\', piece[at]};
    } else if (length <= 0 || byte < 0x20 || byte == 0x7F) {
      absl::StrAppendFormat(&out, "\\x%02x", byte);
    } else {
      out.append(piece, at, length);
    }
    at += length > 0 ? length : 1;
  }
  return out + "\"";
}

void PrintTokens(const Tokenizer& tokenizer, const EncodeResult& encoded, bool ids_only) {
  std::string lines;
  for (const int32_t id : encoded.ids) {
    if (ids_only) {
      absl::StrAppend(&lines, id, "\n");
    } else {
      absl::StrAppendFormat(&lines, "%7d  %s\n", id, Escaped(tokenizer.Piece(id)));
    }
  }
  std::fwrite(lines.data(), 1, lines.size(), stdout);
}

absl::Status WriteJson(const TokenizeFlags& flags, const Tokenizer& tokenizer,
                       const EncodeResult& encoded, const std::string& path) {
  nlohmann::json pieces = nlohmann::json::array();
  for (const int32_t id : encoded.ids) pieces.push_back(ToValidUtf8(tokenizer.Piece(id)));
  nlohmann::json warnings = nlohmann::json::array();
  for (const std::string& warning : encoded.warnings) warnings.push_back(ToValidUtf8(warning));
  const nlohmann::json result = {{"model", ToValidUtf8(flags.model)},
                                 {"tokens", encoded.ids},
                                 {"pieces", pieces},
                                 {"begin_token_rule", ToValidUtf8(encoded.rule)},
                                 {"dropped_bytes", encoded.dropped_bytes},
                                 {"invalid_bytes", encoded.invalid_bytes},
                                 {"warnings", warnings}};
  return WriteTextFile(path, result.dump());
}

void Report(const EncodeResult& encoded, size_t text_bytes, const GlobalOptions& global) {
  if (global.quiet) return;
  for (const std::string& warning : encoded.warnings) {
    std::fprintf(stderr, "kvring: warning: %s\n", ToValidUtf8(warning).c_str());
  }
  if (encoded.dropped_bytes > 0) {
    std::fprintf(stderr,
                 "kvring: warning: %lld bytes are not in the vocabulary and were left out\n",
                 static_cast<long long>(encoded.dropped_bytes));
  }
  if (!global.verbose) return;
  std::fprintf(stderr, "%zu bytes, %zu tokens; %lld bytes outside UTF-8, %lld bytes left out\n%s\n",
               text_bytes, encoded.ids.size(), static_cast<long long>(encoded.invalid_bytes),
               static_cast<long long>(encoded.dropped_bytes), ToValidUtf8(encoded.rule).c_str());
}

absl::Status TokenizeCommand(const TokenizeFlags& flags, const GlobalOptions& global) {
  KVRING_ASSIGN_OR_RETURN(const std::string text, GatherText(flags));
  KVRING_ASSIGN_OR_RETURN(const auto file, GgufFile::Open(flags.model));
  KVRING_ASSIGN_OR_RETURN(const VocabData vocab, ReadVocab(*file));
  auto tokenizer = Tokenizer::Create(vocab);
  KVRING_RETURN_IF_ERROR(Annotate(tokenizer.status(), flags.model));
  KVRING_ASSIGN_OR_RETURN(const EncodeResult encoded,
                          EncodeAsAsked(flags, vocab, **tokenizer, text));
  if (global.json != "-") PrintTokens(**tokenizer, encoded, flags.ids_only);
  Report(encoded, text.size(), global);
  if (global.json.empty()) return absl::OkStatus();
  return WriteJson(flags, **tokenizer, encoded, global.json);
}

}  // namespace

CommandAction AddTokenizeCommand(CLI::App& app, const GlobalOptions& global) {
  auto flags = std::make_shared<TokenizeFlags>();
  TokenizeFlags& f = *flags;
  app.add_option("-m,--model", f.model, "model file (GGUF)")->required();
  CLI::Option* file = app.add_option(
      "-f,--file", f.files, "text to read, - for standard input; may be given several times");
  CLI::Option* text = app.add_option("-p,--prompt", f.text, "text itself")->excludes(file);
  app.add_flag("--ids", f.ids_only, "one id a line, nothing else");
  app.add_flag("--special", f.special, "let spellings of control tokens become those tokens");
  app.add_flag("--chat", f.chat,
               "put the text into the model's chat template, as one user's message");
  CLI::Option* bos = app.add_flag("--bos", f.bos, "add a begin token whatever the model says");
  app.add_flag("--no-bos", f.no_bos, "add none whatever the model says")->excludes(bos);
  return [flags, file, text, &global]() -> absl::Status {
    if (file->count() + text->count() == 0) {
      return absl::InvalidArgumentError("tokenize: no text; give -f FILE or -p TEXT");
    }
    return TokenizeCommand(*flags, global);
  };
}

}  // namespace kvring
