// SPDX-License-Identifier: Apache-2.0
// Sources as the rules of tests/tidy see them.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kvring::tidy {

struct SourceFile {
  std::string path;  // from the project's root, with '/'
  std::string text;

  std::vector<std::string> Lines() const;
  bool Under(const std::string& folder) const;  // folder without a slash at its end
  bool EndsWith(const std::string& suffix) const;
  bool IsCpp() const;   // .h .cc .cu .cuh
  bool IsTest() const;  // tests/ and benchmarks/
};

// Every file of the project's rooms that a rule looks at (sources, scripts, CMake, Markdown), sorted by path. Build
// folders and hidden ones are left out, .ci is not.
std::vector<SourceFile> LoadSources(const std::string& root);

// The text with comments, string and character literals and preprocessor lines blanked; line breaks and length stay.
std::string BlankNonCode(const std::string& text);

// (line number, name) of each #include, with the quotes or brackets around the name.
std::vector<std::pair<int, std::string>> Includes(const SourceFile& file);

}  // namespace kvring::tidy
