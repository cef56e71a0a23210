// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>

#include "tests/tidy/rules.h"

namespace kvring::tidy {
namespace {

constexpr int kFileLines = 600;
constexpr int kTestFileLines = 900;
constexpr int kFunctionLines = 70;
constexpr int kKernelLines = 150;

bool IsWordChar(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Position of `word` in `line` with no word character beside it, or npos.
size_t FindWord(const std::string& line, const std::string& word) {
  for (size_t i = line.find(word); i != std::string::npos; i = line.find(word, i + 1)) {
    const size_t end = i + word.size();
    const bool left = i == 0 || !IsWordChar(line[i - 1]) || !IsWordChar(word.front());
    const bool right = end == line.size() || !IsWordChar(line[end]) || !IsWordChar(word.back());
    if (left && right) return i;
  }
  return std::string::npos;
}

// True when `list` names `path` as a whole word of a CMake file.
bool Lists(const std::string& list, const std::string& path) {
  const auto is_path_char = [](char c) {
    return IsWordChar(c) || c == '/' || c == '.' || c == '-';
  };
  for (size_t i = list.find(path); i != std::string::npos; i = list.find(path, i + 1)) {
    const size_t end = i + path.size();
    if ((i == 0 || !is_path_char(list[i - 1])) &&
        (end == list.size() || !is_path_char(list[end]))) {
      return true;
    }
  }
  return false;
}

}  // namespace

Findings CheckLengths(const SourceFile& file) {
  Findings findings;
  if (file.EndsWith(".md") || file.EndsWith(".json")) return findings;
  const int lines = static_cast<int>(std::count(file.text.begin(), file.text.end(), '\n'));
  const int limit = file.IsTest() ? kTestFileLines : kFileLines;
  if (lines > limit) {
    findings.push_back(
        {file.path, 0, std::to_string(lines) + " lines; the limit is " + std::to_string(limit)});
  }
  if (!file.IsCpp()) return findings;
  const int function_limit = file.Under("kernels") ? kKernelLines : kFunctionLines;
  for (const FunctionSpan& f : FindFunctions(file.text)) {
    if (f.lines() > function_limit && f.statements > 1) {
      findings.push_back({file.path, f.begin,
                          "a function of " + std::to_string(f.lines()) + " lines; the limit is " +
                              std::to_string(function_limit)});
    }
  }
  return findings;
}

Findings CheckFirstLines(const SourceFile& file) {
  Findings findings;
  if (file.EndsWith(".md") || file.EndsWith(".json")) return findings;
  // A script has its interpreter first.
  const std::vector<std::string> lines = file.Lines();
  const size_t at = !lines.empty() && lines[0].rfind("#!", 0) == 0 ? 1 : 0;
  if (lines.size() <= at ||
      lines[at].find("SPDX-License-Identifier: Apache-2.0") == std::string::npos) {
    findings.push_back({file.path, 1, "no SPDX line"});
  }
  // Highway's files are included once for each instruction set.
  const bool header = (file.EndsWith(".h") && !file.EndsWith("-inl.h")) || file.EndsWith(".cuh");
  if (header && std::find(lines.begin(), lines.end(), "#pragma once") == lines.end()) {
    findings.push_back({file.path, 1, "no #pragma once"});
  }
  return findings;
}

Findings CheckBannedWords(const SourceFile& file) {
  // In pieces, so that this file passes its own rule.
  static const std::vector<std::string> kWords = {
      "TO"
      "DO",
      "FIX"
      "ME",
      "XX"
      "X",
      "/work"
      "/",
      "/root"
      "/",
      "/home"
      "/"};
  Findings findings;
  int number = 0;
  for (const std::string& line : file.Lines()) {
    ++number;
    for (const std::string& word : kWords) {
      if (FindWord(line, word) != std::string::npos) findings.push_back({file.path, number, word});
    }
  }
  return findings;
}

Findings CheckConditionals(const SourceFile& file) {
  // Registries may ask what was built; instruction sets and nvcc are asked for where kernels are compiled.
  static const std::vector<std::string> kAllowed = {"kernels/cpu/", "kernels/cuda/",
                                                    "dist/communicator_registry.cc"};
  Findings findings;
  if (!file.IsCpp() || file.IsTest()) return findings;
  if (std::any_of(kAllowed.begin(), kAllowed.end(),
                  [&](const std::string& place) { return file.path.rfind(place, 0) == 0; })) {
    return findings;
  }
  int number = 0;
  for (const std::string& line : file.Lines()) {
    ++number;
    const size_t hash = line.find_first_not_of(" \t");
    if (hash == std::string::npos || line[hash] != '#') continue;
    const size_t word = line.find_first_not_of(" \t", hash + 1);
    const bool conditional = word != std::string::npos && (line.compare(word, 2, "if") == 0 ||
                                                           line.compare(word, 4, "elif") == 0);
    // Free: Highway's own pattern for code that is compiled once for each instruction set, and help for sanitizers.
    const bool free = line.find("HWY_") != std::string::npos ||
                      line.find("_ONCE") != std::string::npos ||
                      line.find("__SANITIZE_ADDRESS__") != std::string::npos;
    if (conditional && !free) {
      findings.push_back({file.path, number, "conditional compilation"});
    }
  }
  return findings;
}

Findings CheckUnlisted(const std::vector<SourceFile>& files) {
  std::map<std::string, const std::string*> lists;  // folder -> text of its CMakeLists.txt
  for (const SourceFile& file : files) {
    if (file.EndsWith("/CMakeLists.txt")) {
      lists[file.path.substr(0, file.path.size() - sizeof("/CMakeLists.txt") + 1)] = &file.text;
    } else if (file.path == "CMakeLists.txt") {
      lists[""] = &file.text;
    }
  }
  Findings findings;
  const std::string& top = lists.count("") ? *lists[""] : std::string();
  for (const auto& [folder, text] : lists) {
    // The consumer of the installed package is a project of its own.
    if (!folder.empty() && folder != "tests/package" && !Lists(top, folder)) {
      findings.push_back(
          {folder + "/CMakeLists.txt", 0, "the top CMakeLists.txt does not list this folder"});
    }
  }
  for (const SourceFile& file : files) {
    if (!file.EndsWith(".cc") && !file.EndsWith(".cu") && !file.EndsWith(".proto")) continue;
    const std::filesystem::path path(file.path);
    const bool listed = std::any_of(lists.begin(), lists.end(), [&](const auto& list) {
      const auto& [folder, text] = list;
      const std::string from_here =
          path.lexically_relative(folder.empty() ? "." : folder).generic_string();
      return Lists(*text, from_here) || Lists(*text, "PROJECT_SOURCE_DIR}/" + file.path);
    });
    if (!listed) findings.push_back({file.path, 0, "no CMakeLists.txt lists this source"});
  }
  return findings;
}

}  // namespace kvring::tidy
