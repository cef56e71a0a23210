// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/gguf.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/model/gguf_writer.h"
#include "tests/runtime/model/model_files.h"
#include "tests/runtime/model/raw_gguf.h"

namespace kvring {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

GgufWriter EveryKind() {
  GgufWriter writer(64);
  writer.Set("u8", uint8_t{255});
  writer.Set("i8", int8_t{-128});
  writer.Set("u16", uint16_t{65535});
  writer.Set("i16", int16_t{-32768});
  writer.Set("u32", uint32_t{4000000000u});
  writer.Set("i32", int32_t{-7});
  writer.Set("u64", std::numeric_limits<uint64_t>::max());
  writer.Set("i64", std::numeric_limits<int64_t>::min());
  writer.Set("f32", 1.5f);
  writer.Set("f64", 1e300);
  writer.Set("yes", true);
  writer.Set("no", false);
  writer.Set("text", std::string("a\0b", 3));
  writer.SetStrings("strings", {"x", "", "zz"});
  writer.SetInts("ints", {3, -4});
  writer.SetFloats("floats", {0.25f});
  return writer;
}

TEST(Gguf, WhatIsWrittenIsRead) {
  GgufWriter writer = EveryKind();
  const std::string a(2 * 34, 'a'), b(3 * 4, 'b');
  ASSERT_TRUE(writer.AddTensor("q", *FindWeightFormat(8), {32, 2}, a).ok());
  ASSERT_TRUE(writer.AddTensor("f", *FindWeightFormat(0), {3}, b).ok());
  const std::string bytes = writer.Bytes();
  const auto file = ParseBytes(bytes);
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->version(), 3);
  EXPECT_EQ(file->alignment(), 64);
  EXPECT_EQ(file->metadata().size(), 17);
  EXPECT_EQ(file->metadata().front().first, "general.alignment");
  EXPECT_EQ(*file->GetInt("u8"), 255);
  EXPECT_EQ(*file->GetInt("i8"), -128);
  EXPECT_EQ(*file->GetInt("u16"), 65535);
  EXPECT_EQ(*file->GetInt("i16"), -32768);
  EXPECT_EQ(*file->GetInt("u32"), 4000000000);
  EXPECT_EQ(*file->GetInt("i64"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(*file->GetFloat("f32"), 1.5);
  EXPECT_EQ(*file->GetFloat("f64"), 1e300);
  EXPECT_EQ(*file->GetFloat("i32"), -7.0);
  EXPECT_TRUE(*file->GetBool("yes"));
  EXPECT_FALSE(*file->GetBool("no"));
  EXPECT_EQ(*file->GetString("text"), std::string("a\0b", 3));
  const auto& strings = std::get<std::shared_ptr<GgufArray>>(*file->FindValue("strings"));
  EXPECT_THAT(strings->values, ElementsAre(GgufValue("x"), GgufValue(""), GgufValue("zz")));
  const GgufTensor* q = file->FindTensor("q");
  ASSERT_NE(q, nullptr);
  EXPECT_THAT(q->dims, ElementsAre(32, 2));
  EXPECT_STREQ(q->format->name, "Q8_0");
  EXPECT_EQ(std::string(q->data.begin(), q->data.end()), a);
  EXPECT_EQ(file->FindTensor("f")->offset % 64, 0);
  EXPECT_EQ(file->FindTensor("nothing"), nullptr);
}

TEST(Gguf, LookUpsNameKeyAndFile) {
  const std::string bytes = EveryKind().Bytes();
  const auto file = ParseBytes(bytes);
  EXPECT_EQ(file->GetInt("absent").status().code(), absl::StatusCode::kNotFound);
  for (const absl::Status& status :
       {file->GetInt("absent").status(), file->GetInt("text").status(),
        file->GetInt("yes").status(), file->GetInt("u64").status(), file->GetInt("f32").status(),
        file->GetFloat("text").status(), file->GetBool("u8").status(),
        file->GetString("u8").status(), file->GetString("strings").status()}) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("test.gguf: key '"));
  }
}

TEST(Gguf, Version2HasTheSameLayout) {
  RawGguf raw;
  raw.version = 2;
  const std::string bytes = raw.Bytes();
  const auto file = ParseBytes(bytes);
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->version(), 2);
  EXPECT_EQ(file->tensors().front().elements(), 8);
}

TEST(Gguf, MappedFileEqualsMemory) {
  const std::string bytes = TinyBytes(SmallOptions());
  const TempFile temp(bytes);
  const auto mapped = GgufFile::Open(temp.path());
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  const auto memory = ParseBytes(bytes);
  EXPECT_EQ((*mapped)->file_bytes(), static_cast<int64_t>(bytes.size()));
  ASSERT_EQ((*mapped)->tensors().size(), memory->tensors().size());
  for (size_t i = 0; i < memory->tensors().size(); ++i) {
    const GgufTensor& a = (*mapped)->tensors()[i];
    const GgufTensor& b = memory->tensors()[i];
    ASSERT_TRUE(std::equal(a.data.begin(), a.data.end(), b.data.begin(), b.data.end())) << a.name;
    std::vector<uint8_t> tail(3);
    ASSERT_TRUE((*mapped)->ReadTensor(a, a.data.size() - 3, tail).ok());
    EXPECT_TRUE(std::equal(tail.begin(), tail.end(), b.data.end() - 3)) << a.name;
  }
}

TEST(Gguf, AFileOfKeysAloneOpens) {
  const std::string bytes = EveryKind().Bytes();
  EXPECT_TRUE(ParseBytes(bytes)->tensors().empty());
}

TEST(Gguf, WriterRefusesWrongSizes) {
  GgufWriter writer;
  EXPECT_FALSE(writer.AddTensor("t", *FindWeightFormat(0), {4}, "short").ok());
  EXPECT_FALSE(writer.AddTensor("t", *FindWeightFormat(8), {33}, std::string(34, 'x')).ok());
}

TEST(Gguf, WriterSaysWhatCannotBeWritten) {
  const absl::Status status = GgufWriter().Write("/nonexistent/folder/m.gguf");
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/folder/m.gguf"));
}

}  // namespace
}  // namespace kvring
