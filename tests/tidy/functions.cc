// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <sstream>

#include "tests/tidy/rules.h"

namespace kvring::tidy {
namespace {

enum class Brace { kContainer, kFunction, kInner, kInitializer };

bool HasWord(const std::string& text, const std::string& word) {
  std::string spaced;
  for (const char c : text) {
    spaced += std::isalnum(static_cast<unsigned char>(c)) || c == '_' ? c : ' ';
  }
  std::istringstream words(spaced);
  for (std::string w; words >> w;) {
    if (w == word) return true;
  }
  return false;
}

// Reads code brace by brace; `header_` is what stands before a brace since the last statement's end.
class Scanner {
 public:
  explicit Scanner(const std::string& code) : code_(code) {}

  std::vector<FunctionSpan> Run() {
    for (size_t i = 0; i < code_.size(); ++i) {
      const char c = code_[i];
      if (c == '\n') ++line_;
      if (c == '{') {
        Open();
      } else if (c == '}') {
        Close();
      } else if (c == ';') {
        ++statements_;
        ResetHeader();
      } else {
        AddToHeader(c);
      }
    }
    return functions_;
  }

 private:
  // White space of any length counts as one blank.
  void AddToHeader(char c) {
    const bool space = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (space && (header_.empty() || header_.back() == ' ')) return;
    if (header_.empty()) header_line_ = line_;
    header_ += space ? ' ' : c;
  }

  void ResetHeader() { header_.clear(); }

  bool InsideFunction() const {
    return std::find(open_.begin(), open_.end(), Brace::kFunction) != open_.end();
  }

  Brace Kind() const {
    if (InsideFunction()) return Brace::kInner;
    if (HasWord(header_, "namespace") || header_.find('(') == std::string::npos) {
      return Brace::kContainer;
    }
    const bool is_type = (HasWord(header_, "struct") || HasWord(header_, "class")) &&
                         header_.find(')') == std::string::npos;
    if (is_type) return Brace::kContainer;
    // Foo::Foo(int a) : a_{a} {  -- the first brace belongs to a member.
    const size_t list = header_.find(") :");
    const char last = header_.back();
    const bool member =
        list != std::string::npos &&
        (std::isalnum(static_cast<unsigned char>(last)) || last == '_' || last == '>');
    return member ? Brace::kInitializer : Brace::kFunction;
  }

  void Open() {
    const Brace kind = Kind();
    open_.push_back(kind);
    if (kind == Brace::kFunction) {
      begin_ = header_line_;
      statements_ = 0;
    }
    if (kind != Brace::kInitializer) ResetHeader();
  }

  void Close() {
    if (open_.empty()) return;
    const Brace kind = open_.back();
    open_.pop_back();
    if (kind == Brace::kFunction) functions_.push_back({begin_, line_, statements_});
    if (kind == Brace::kInitializer) {
      header_ += '}';
    } else {
      ResetHeader();
    }
  }

  const std::string& code_;
  int line_ = 1, header_line_ = 1, begin_ = 1, statements_ = 0;
  std::string header_;
  std::vector<Brace> open_;
  std::vector<FunctionSpan> functions_;
};

}  // namespace

std::vector<FunctionSpan> FindFunctions(const std::string& text) {
  const std::string code = BlankNonCode(text);
  return Scanner(code).Run();
}

}  // namespace kvring::tidy
