// SPDX-License-Identifier: Apache-2.0
// Our own sources keep the rules, and each rule can fail: every one is also run on a sample that breaks it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tidy/rules.h"

namespace kvring::tidy {
namespace {

const std::vector<SourceFile>& Sources() {
  static const std::vector<SourceFile> kSources = LoadSources(KVRING_SOURCE_DIR);
  return kSources;
}

std::string Print(const Findings& findings) {
  std::string text;
  for (const Finding& f : findings) {
    text += f.path + ":" + std::to_string(f.line) + ": " + f.what + "\n";
  }
  return text;
}

void ExpectClean(Findings (*rule)(const SourceFile&)) {
  for (const SourceFile& file : Sources()) {
    const Findings findings = rule(file);
    EXPECT_TRUE(findings.empty()) << Print(findings);
  }
}

std::string Repeat(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(Tidy, FindsTheSources) {
  // A wrong root would make every rule pass.
  const auto has = [](const std::string& path) {
    for (const SourceFile& file : Sources()) {
      if (file.path == path) return !file.text.empty();
    }
    return false;
  };
  EXPECT_TRUE(has("kernels/codec.h"));
  EXPECT_TRUE(has("tests/tidy/tidy_test.cc"));
  EXPECT_TRUE(has("launch/demo.sh"));
  EXPECT_TRUE(has(".ci/run"));
}

TEST(Tidy, Layers) { ExpectClean(CheckLayers); }
TEST(Tidy, Libraries) { ExpectClean(CheckLibraries); }
TEST(Tidy, Lengths) { ExpectClean(CheckLengths); }
TEST(Tidy, FirstLines) { ExpectClean(CheckFirstLines); }
TEST(Tidy, BannedWords) { ExpectClean(CheckBannedWords); }
TEST(Tidy, Conditionals) { ExpectClean(CheckConditionals); }
TEST(Tidy, Unlisted) {
  const Findings findings = CheckUnlisted(Sources());
  EXPECT_TRUE(findings.empty()) << Print(findings);
}

TEST(TidyRule, LayersCanFail) {
  EXPECT_EQ(CheckLayers({"kvstore/a.cc", "#include \"dist/communicator.h\"\n"}).size(), 1u);
  EXPECT_EQ(CheckLayers({"dist/a.cc", "#include \"kvstore/page_pool.h\"\n"}).size(), 1u);
  EXPECT_EQ(CheckLayers({"kernels/a.h", "\n#  include \"runtime/base/status.h\"\n"}).size(), 1u);
  EXPECT_EQ(CheckLayers({"runtime/base/a.h", "#include \"runtime/model/gguf.h\"\n"}).size(), 1u);
  EXPECT_EQ(CheckLayers({"runtime/a.cc", "#include \"launch/command.h\"\n"}).size(), 1u);
  EXPECT_EQ(CheckLayers({"launch/a.cc", "#include \"tests/support/x.h\"\n"}).size(), 1u);
  EXPECT_EQ(CheckLayers({"kernels/a.cc", "#include \"codec.h\"\n"}).size(), 1u);
  EXPECT_TRUE(CheckLayers({"runtime/a.cc", "#include \"dist/communicator.h\"\n"}).empty());
  EXPECT_TRUE(CheckLayers({"tests/a.cc", "#include \"launch/command.h\"\n"}).empty());
}

TEST(TidyRule, LibrariesCanFail) {
  EXPECT_EQ(CheckLibraries({"kernels/a.cc", "#include \"absl/status/status.h\"\n"}).size(), 1u);
  EXPECT_EQ(CheckLibraries({"runtime/a.cc", "#include <mpi.h>\n"}).size(), 1u);
  EXPECT_EQ(CheckLibraries({"dist/mpi_a.h", "#include <mpi.h>\n"}).size(), 1u);
  EXPECT_EQ(CheckLibraries({"launch/a.h", "#include \"CLI/CLI.hpp\"\n"}).size(), 1u);
  EXPECT_EQ(CheckLibraries({"runtime/a.h", "#include \"kvring/v1/step_plan.pb.h\"\n"}).size(), 1u);
  EXPECT_EQ(CheckLibraries({"kernels/a.h", "#include <cuda_runtime.h>\n"}).size(), 1u);
  EXPECT_EQ(CheckLibraries({"launch/a.cc", "#include <regex>\n"}).size(), 1u);
  EXPECT_TRUE(CheckLibraries({"dist/mpi_communicator.cc", "#include <mpi.h>\n"}).empty());
  EXPECT_TRUE(CheckLibraries({"launch/cmd_run.cc", "#include \"CLI/CLI.hpp\"\n"}).empty());
}

TEST(TidyRule, LengthsCanFail) {
  const std::string head = "int F(int a) {\n", tail = "}\n";
  const auto function = [&](int lines) { return head + Repeat("  ++a;\n", lines - 2) + tail; };
  EXPECT_TRUE(CheckLengths({"dist/a.cc", function(70)}).empty());
  EXPECT_EQ(CheckLengths({"dist/a.cc", function(71)}).size(), 1u);
  EXPECT_TRUE(CheckLengths({"dist/a.cc", "T F() {\n  return {\n" + Repeat("1,\n", 99) + "};\n}\n"})
                  .empty());
  EXPECT_TRUE(CheckLengths({"kernels/a.cc", function(150)}).empty());
  EXPECT_EQ(CheckLengths({"kernels/a.cc", function(151)}).size(), 1u);
  EXPECT_TRUE(CheckLengths({"dist/a.h", Repeat("int a;\n", 600)}).empty());
  EXPECT_EQ(CheckLengths({"dist/a.h", Repeat("int a;\n", 601)}).size(), 1u);
  EXPECT_TRUE(CheckLengths({"tests/a.cc", Repeat("int a;\n", 900)}).empty());
  EXPECT_EQ(CheckLengths({"tests/a.cc", Repeat("int a;\n", 901)}).size(), 1u);
}

TEST(TidyRule, FunctionsAreFound) {
  const std::string text =
      "namespace n {\n"                      // 1
      "struct S {\n"                         // 2
      "  int x = 3;\n"                       // 3
      "  int Get() const { return x; }\n"    // 4
      "};\n"                                 // 5
      "// a brace in a comment: {\n"         // 6
      "const char* kText = \"{ ( \";\n"      // 7
      "const char* kRaw = R\"(}}}\n{)\";\n"  // 8, 9
      "S::S(int a)\n"                        // 10
      "    : x_{a}, y_(a) {\n"               // 11
      "  if (a) {\n"                         // 12
      "    Call([&] { return 1'000; });\n"   // 13
      "  }\n"                                // 14
      "}\n"                                  // 15
      "#define MACRO(a) { \\\n  a }\n"       // 16, 17
      "int kTable[] = {1, 2};\n"             // 18
      "}  // namespace n\n";
  const std::vector<FunctionSpan> functions = FindFunctions(text);
  ASSERT_EQ(functions.size(), 2u);
  EXPECT_EQ(functions[0].begin, 4);
  EXPECT_EQ(functions[0].lines(), 1);
  EXPECT_EQ(functions[1].begin, 10);
  EXPECT_EQ(functions[1].end, 15);
}

TEST(TidyRule, FirstLinesCanFail) {
  const std::string licence = "// SPDX-License-Identifier: Apache-2.0\n";
  EXPECT_EQ(CheckFirstLines({"dist/a.cc", "int a;\n"}).size(), 1u);
  EXPECT_EQ(CheckFirstLines({"dist/a.h", licence + "int a;\n"}).size(), 1u);
  EXPECT_EQ(CheckFirstLines({"launch/a.sh", "#!/bin/sh\n"}).size(), 1u);
  EXPECT_TRUE(CheckFirstLines({"dist/a.h", licence + "#pragma once\n"}).empty());
  EXPECT_TRUE(CheckFirstLines({"launch/a.sh", "#!/bin/sh\n" + licence}).empty());
}

TEST(TidyRule, BannedWordsCanFail) {
  EXPECT_EQ(CheckBannedWords({"dist/a.cc",
                              "// TO"
                              "DO: later\n"})
                .size(),
            1u);
  EXPECT_EQ(CheckBannedWords({"dist/a.cc",
                              "\n// FIX"
                              "ME\n"})[0]
                .line,
            2);
  EXPECT_EQ(CheckBannedWords({"docs/a.md",
                              "see /root"
                              "/notes\n"})
                .size(),
            1u);
  EXPECT_TRUE(CheckBannedWords({"launch/a.sh", "mktemp a.XXXXXX\n"}).empty());
}

TEST(TidyRule, ConditionalsCanFail) {
  EXPECT_EQ(CheckConditionals({"runtime/a.cc", "#ifdef KVRING_MPI\n#endif\n"}).size(), 1u);
  EXPECT_EQ(CheckConditionals({"runtime/a.cc", "#if 0\n#elif 1\n#endif\n"}).size(), 2u);
  EXPECT_TRUE(CheckConditionals({"kernels/a.cc", "#if HWY_ONCE\n#endif\n"}).empty());
  EXPECT_TRUE(
      CheckConditionals({"dist/communicator_registry.cc", "#if KVRING_MPI\n#endif\n"}).empty());
}

TEST(TidyRule, UnlistedCanFail) {
  const SourceFile top{"CMakeLists.txt", "kvring_rooms(kernels)\n"};
  const SourceFile room{"kernels/CMakeLists.txt",
                        "kvring_library(kernels SOURCES a.cc cpu/b.cc)\n"};
  const auto check = [&](const std::string& source) {
    return CheckUnlisted({top, room, {source, ""}}).size();
  };
  EXPECT_EQ(check("kernels/a.cc"), 0u);
  EXPECT_EQ(check("kernels/cpu/b.cc"), 0u);
  EXPECT_EQ(check("kernels/b.cc"), 1u);  // cpu/b.cc is another file
  EXPECT_EQ(check("kernels/cpu/a.cc"), 1u);
  EXPECT_EQ(CheckUnlisted({top, {"dist/CMakeLists.txt", ""}}).size(), 1u);
  const SourceFile other{"kernels/CMakeLists.txt",
                         "a(../dist/a.cc ${PROJECT_SOURCE_DIR}/dist/b.cc)"};
  EXPECT_EQ(CheckUnlisted({top, other, {"dist/a.cc", ""}, {"dist/b.cc", ""}}).size(), 0u);
}

}  // namespace
}  // namespace kvring::tidy
