// SPDX-License-Identifier: Apache-2.0
// The fingerprint of a model: the same for the same tensors, another for other weights or types, blind to metadata.
#include "runtime/model/fingerprint.h"

#include "gtest/gtest.h"
#include "tests/runtime/model/model_files.h"

namespace kvring {
namespace {

std::string Print(const TinyModelOptions& options) {
  const std::string bytes = TinyBytes(options);
  const auto file = GgufFile::FromMemory(AsBytes(bytes), "tiny");
  EXPECT_TRUE(file.ok()) << file.status();
  const auto print = ModelFingerprint(**file);
  EXPECT_TRUE(print.ok()) << print.status();
  return print.ok() ? HashHex(*print) : "";
}

TEST(Fingerprint, BelongsToTensorsAndNotToMetadata) {
  TinyModelOptions options = SmallOptions();
  const std::string first = Print(options);
  EXPECT_EQ(first.size(), 32u);
  EXPECT_EQ(first, Print(options));
  TinyModelOptions other_text = options;
  other_text.trained_context = 4096;
  EXPECT_EQ(first, Print(other_text));
  TinyModelOptions other_seed = options;
  other_seed.seed = 2;
  EXPECT_NE(first, Print(other_seed));
  TinyModelOptions other_type = options;
  other_type.weight_type = "F16";
  EXPECT_NE(first, Print(other_type));
}

}  // namespace
}  // namespace kvring
