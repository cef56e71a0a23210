// SPDX-License-Identifier: Apache-2.0
#include "tests/tidy/source_file.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace kvring::tidy {
namespace fs = std::filesystem;
namespace {

bool IsWordChar(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Steps over one literal or comment that starts at `i`; returns its end, or `i` when there is none.
size_t EndOfNonCode(const std::string& text, size_t i) {
  const char c = text[i];
  const char next = i + 1 < text.size() ? text[i + 1] : '\0';
  if (c == '/' && next == '/') return std::min(text.find('\n', i), text.size());
  if (c == '/' && next == '*') {
    const size_t end = text.find("*/", i + 2);
    return end == std::string::npos ? text.size() : end + 2;
  }
  if (c == 'R' && next == '"' && (i == 0 || !IsWordChar(text[i - 1]))) {
    const size_t open = text.find('(', i);
    if (open == std::string::npos) return i;
    const std::string close = ")" + text.substr(i + 2, open - i - 2) + "\"";
    const size_t end = text.find(close, open);
    return end == std::string::npos ? text.size() : end + close.size();
  }
  const bool digit_separator = c == '\'' && i > 0 && IsWordChar(text[i - 1]);
  if (c != '"' && (c != '\'' || digit_separator)) return i;
  size_t end = i + 1;
  while (end < text.size() && text[end] != c && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
  return std::min(end + 1, text.size());
}

// End of a preprocessor line that starts at `i`, continuations included.
size_t EndOfDirective(const std::string& text, size_t i) {
  size_t end = text.find('\n', i);
  while (end != std::string::npos && end > 0 && text[end - 1] == '\\')
    end = text.find('\n', end + 1);
  return end == std::string::npos ? text.size() : end;
}

bool IsLookedAt(const fs::path& path) {
  static const char* const kEndings[] = {".h",  ".cc",    ".cu", ".cuh", ".proto",
                                         ".sh", ".cmake", ".md", ".in"};
  const std::string name = path.filename().string();
  if (name == "CMakeLists.txt" || name == "CMakePresets.json") return true;
  if (path.parent_path().filename() == ".ci") return true;
  return std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&](const char* ending) { return path.extension() == ending; });
}

bool IsSkippedFolder(const fs::path& path) {
  const std::string name = path.filename().string();
  return name == "build" || name == "golden" || (name[0] == '.' && name != ".ci");
}

}  // namespace

std::vector<std::string> SourceFile::Lines() const {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool SourceFile::Under(const std::string& folder) const { return path.rfind(folder + "/", 0) == 0; }

bool SourceFile::EndsWith(const std::string& suffix) const {
  return path.size() >= suffix.size() &&
         path.compare(path.size() - suffix.size(), suffix.size(), suffix) == 0;
}

bool SourceFile::IsCpp() const {
  return EndsWith(".h") || EndsWith(".cc") || EndsWith(".cu") || EndsWith(".cuh");
}

bool SourceFile::IsTest() const { return Under("tests") || Under("benchmarks"); }

std::vector<SourceFile> LoadSources(const std::string& root) {
  std::vector<SourceFile> files;
  fs::recursive_directory_iterator it(root), end;
  for (; it != end; ++it) {
    if (it->is_directory() && IsSkippedFolder(it->path())) {
      it.disable_recursion_pending();
      continue;
    }
    if (!it->is_regular_file() || !IsLookedAt(it->path())) continue;
    std::ifstream in(it->path(), std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    files.push_back({fs::relative(it->path(), root).generic_string(), text.str()});
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

std::string BlankNonCode(const std::string& text) {
  std::string out = text;
  const auto blank = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (out[i] != '\n') out[i] = ' ';
    }
  };
  bool line_start = true;
  for (size_t i = 0; i < text.size();) {
    if (line_start && text[i] == '#') {
      const size_t end = EndOfDirective(text, i);
      blank(i, end);
      i = end;
      continue;
    }
    const size_t end = EndOfNonCode(text, i);
    if (end > i) {
      blank(i, end);
      i = end;
      line_start = false;
      continue;
    }
    if (text[i] == '\n') {
      line_start = true;
    } else if (!std::isspace(static_cast<unsigned char>(text[i]))) {
      line_start = false;
    }
    ++i;
  }
  return out;
}

std::vector<std::pair<int, std::string>> Includes(const SourceFile& file) {
  std::vector<std::pair<int, std::string>> found;
  int number = 0;
  for (const std::string& line : file.Lines()) {
    ++number;
    size_t i = line.find_first_not_of(" \t");
    if (i == std::string::npos || line[i] != '#') continue;
    i = line.find_first_not_of(" \t", i + 1);
    if (i == std::string::npos || line.compare(i, 7, "include") != 0) continue;
    const size_t open = line.find_first_of("\"<", i);
    if (open == std::string::npos) continue;
    const size_t close = line.find_first_of("\">", open + 1);
    if (close != std::string::npos) found.emplace_back(number, line.substr(open, close - open + 1));
  }
  return found;
}

}  // namespace kvring::tidy
