// SPDX-License-Identifier: Apache-2.0
// The rules that a machine keeps. Each is a function of sources, so that its own test can show that it fails.
#pragma once

#include <string>
#include <vector>

#include "tests/tidy/source_file.h"

namespace kvring::tidy {

struct Finding {
  std::string path;
  int line = 0;
  std::string what;
};
using Findings = std::vector<Finding>;

struct FunctionSpan {
  int begin = 0, end = 0;  // lines, both included
  int statements = 0;      // semicolons inside
  int lines() const { return end - begin + 1; }
};

// Functions of a C++ source by braces: good for code in our form, not a parser.
std::vector<FunctionSpan> FindFunctions(const std::string& text);

// Who may include whom among our folders (docs/architecture.md), and which library headers are kept to which files.
Findings CheckLayers(const SourceFile& file);
Findings CheckLibraries(const SourceFile& file);
// Lines of a file and of a function; kernels may have longer bodies, tests longer files. A function of one statement is a
// table, which may be as long as its data.
Findings CheckLengths(const SourceFile& file);
// The licence line, and #pragma once in headers.
Findings CheckFirstLines(const SourceFile& file);
// Open ends and paths of somebody's machine.
Findings CheckBannedWords(const SourceFile& file);
// What is built is decided by lists of sources, not by the preprocessor.
Findings CheckConditionals(const SourceFile& file);
// Sources that no CMakeLists.txt lists, and folders that the top one does not list.
Findings CheckUnlisted(const std::vector<SourceFile>& files);

}  // namespace kvring::tidy
