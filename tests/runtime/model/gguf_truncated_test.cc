// SPDX-License-Identifier: Apache-2.0
// F15: files that are shorter or longer than their header says.
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/model/weights.h"
#include "tests/runtime/model/model_files.h"

namespace kvring {
namespace {

using testing::HasSubstr;

// The "T" of the field faults, written once.
const std::string& ModelT() {
  static const std::string bytes = TinyBytes(TinyModelOptions());
  return bytes;
}

// Mapped file and memory give the same answer.
std::string Refusal(const std::string& bytes) {
  const TempFile file(bytes);
  const auto mapped = GgufFile::Open(file.path());
  const auto in_memory = GgufFile::FromMemory(AsBytes(bytes), file.path());
  EXPECT_FALSE(mapped.ok());
  EXPECT_EQ(mapped.status(), in_memory.status());
  EXPECT_THAT(std::string(mapped.status().message()), HasSubstr(file.path()));
  return std::string(mapped.status().message());
}

class F15_Cut : public testing::TestWithParam<int> {};

TEST_P(F15_Cut, NamesTensorAndBothSizes) {
  const std::string& whole = ModelT();
  // 0 stands for a cut by one byte.
  const size_t kept = GetParam() == 0 ? whole.size() - 1 : whole.size() * GetParam() / 100;
  const std::string message = Refusal(whole.substr(0, kept));
  EXPECT_THAT(message, HasSubstr("tensor '"));
  EXPECT_THAT(message, HasSubstr(absl::StrCat("the file has ", kept, " bytes, ", whole.size(),
                                              " are expected")));
}

INSTANTIATE_TEST_SUITE_P(Percent, F15_Cut, testing::Values(10, 50, 99, 0));

TEST(F15_Truncated, EmptyFile) { EXPECT_THAT(Refusal(""), HasSubstr("empty (0 bytes)")); }

TEST(F15_Truncated, EveryCutOfASmallHeaderIsRefused) {
  const std::string whole = TinyBytes(SmallOptions());
  const auto file = ParseBytes(whole);
  const size_t header_end = file->tensors().front().offset;
  for (size_t kept = 1; kept < header_end;
       kept += 13) {  // coprime to every field's size: all kinds of places
    const auto cut = GgufFile::FromMemory(AsBytes(whole).first(kept), "cut.gguf");
    ASSERT_FALSE(cut.ok()) << kept;
    EXPECT_THAT(std::string(cut.status().message()), HasSubstr("cut.gguf: ")) << kept;
  }
}

TEST(F15_Truncated, ExtraBytesAreAWarning) {
  const std::string bytes = TinyBytes(SmallOptions()) + std::string(100, 'x');
  const auto file = ParseBytes(bytes);
  ASSERT_EQ(file->warnings().size(), 1);
  EXPECT_THAT(file->warnings().front(), HasSubstr("100 bytes after the last tensor"));
  const auto config = DeriveModelConfig(*file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->warnings.size(), 1);
}

TEST(F15_Truncated, PaddingAfterTheLastTensorIsNoWarning) {
  std::string bytes = TinyBytes(SmallOptions());
  bytes.resize((bytes.size() + 31) / 32 * 32);
  EXPECT_TRUE(ParseBytes(bytes)->warnings().empty());
}

// Bulk reads do not go through the mapping, so a file that shrinks gives a message and not a signal.
TEST(F15_Truncated, ShrinkingDuringLoad) {
  const TempFile temp(ModelT());
  const std::shared_ptr<const GgufFile> file = GgufFile::Open(temp.path()).value();
  const ModelConfig config = DeriveModelConfig(*file).value();
  std::filesystem::resize_file(temp.path(), ModelT().size() / 2);
  const auto weights = Weights::Load(file, config, WeightsOptions());
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kDataLoss);
  const std::string message(weights.status().message());
  EXPECT_THAT(message, HasSubstr(temp.path()));
  EXPECT_THAT(message, HasSubstr("tensor 'blk."));
  EXPECT_THAT(message, HasSubstr(absl::StrCat("become ", ModelT().size() / 2, " bytes")));
  EXPECT_THAT(message, HasSubstr(absl::StrCat("opened with ", ModelT().size())));
}

// Nor do single rows of the embedding while the model runs.
TEST(F15_Truncated, ShrinkingAfterLoad) {
  const TempFile temp(ModelT());
  const std::shared_ptr<const GgufFile> file = GgufFile::Open(temp.path()).value();
  const ModelConfig config = DeriveModelConfig(*file).value();
  const auto weights = Weights::Load(file, config, WeightsOptions()).value();
  const std::vector<int32_t> ids = {1, 2};
  std::vector<float> rows(ids.size() * config.hidden);
  ASSERT_TRUE(weights->Embed(ids, rows.data()).ok());
  std::filesystem::resize_file(temp.path(), 100);
  const absl::Status status = weights->Embed(ids, rows.data());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor 'token_embd.weight'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("become 100 bytes"));
}

TEST(F15_Truncated, NoFileNoRegularFile) {
  EXPECT_THAT(std::string(GgufFile::Open("/nonexistent/m.gguf").status().message()),
              HasSubstr("/nonexistent/m.gguf"));
  EXPECT_THAT(std::string(GgufFile::Open("/tmp").status().message()),
              HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace kvring
