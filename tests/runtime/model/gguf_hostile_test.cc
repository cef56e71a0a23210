// SPDX-License-Identifier: Apache-2.0
// F11: no number of a header is trusted. Every case is refused with a message that names the file and the field (and the
// limit, where there is one), in under 1 s and under 100 MB.
#include <sys/resource.h>

#include <chrono>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/model/model_files.h"
#include "tests/runtime/model/raw_gguf.h"

namespace kvring {
namespace {

using testing::HasSubstr;

struct HostileCase {
  std::string name;
  RawGguf file;
  std::vector<std::string> says;  // parts of the message
};

void PrintTo(const HostileCase& c, std::ostream* out) { *out << c.name; }

RawGguf WithTensor(const RawTensor& tensor) {
  RawGguf file;
  file.tensors = tensor.Bytes();
  return file;
}

RawGguf WithDims(uint32_t count, const std::vector<uint64_t>& dims) {
  RawTensor tensor;
  tensor.num_dims = count;
  tensor.dims.clear();
  for (uint64_t dim : dims) tensor.dims += Le(dim);
  return WithTensor(tensor);
}

RawGguf WithValues(uint64_t count, const std::string& values) {
  RawGguf file;
  file.num_values = count;
  file.values = values;
  return file;
}

RawGguf WithAlignment(uint32_t alignment) {
  return WithValues(1, RawValue("general.alignment", 4, Le<uint32_t>(alignment)));
}

RawGguf WithPreamble(const std::string& magic, uint32_t version, uint64_t tensors,
                     uint64_t values) {
  RawGguf file;
  file.magic = magic;
  file.version = version;
  file.num_tensors = tensors;
  file.num_values = values;
  return file;
}

RawGguf WithType(uint32_t type, uint64_t row) {
  RawTensor tensor;
  tensor.type = type;
  tensor.dims = Le<uint64_t>(row) + Le<uint64_t>(2);
  return WithTensor(tensor);
}

RawGguf WithOffset(uint64_t offset) {
  RawTensor tensor;
  tensor.offset = offset;
  return WithTensor(tensor);
}

RawGguf TwoTensors(const RawTensor& a, const RawTensor& b) {
  RawGguf file;
  file.num_tensors = 2;
  file.tensors = a.Bytes() + b.Bytes();
  file.data = std::string(64, '\0');
  return file;
}

std::string Array(uint32_t type, uint64_t length) { return Le(type) + Le(length); }

std::vector<HostileCase> Dimensions() {
  constexpr uint64_t kHuge = (uint64_t{1} << 42) + 1;
  RawTensor q4;
  q4.type = 2;
  return {
      {"DimensionBeyond2to42",
       WithDims(2, {kHuge, 2}),
       {"'t.weight'", "dimension 0 is 4398046511105", "2147483647"}},
      {"SecondDimensionHuge", WithDims(2, {4, kHuge}), {"'t.weight'", "dimension 1", "2147483647"}},
      {"DimensionZero", WithDims(2, {0, 2}), {"'t.weight'", "dimension 0 is 0", "1 to"}},
      {"SecondDimensionZero", WithDims(2, {4, 0}), {"'t.weight'", "dimension 1 is 0"}},
      {"DimensionCount0", WithDims(0, {}), {"'t.weight'", "dimension count is 0", "1 to 4"}},
      {"DimensionCount5",
       WithDims(5, {1, 1, 1, 1, 1}),
       {"'t.weight'", "dimension count is 5", "1 to 4"}},
      {"DimensionCountMax", WithDims(0xffffffff, {1}), {"dimension count is 4294967295", "1 to 4"}},
      {"ProductOverflows",
       WithDims(4, {1u << 30, 1u << 30, 1u << 30, 1u << 30}),
       {"product of the dimensions"}},
      {"ProductWrapsToSmall",
       WithDims(4, {1u << 16, 1u << 16, 1u << 16, 1u << 16}),
       {"product of the dimensions"}},
      {"LargerThanFile", WithDims(2, {4, 3}), {"'t.weight'", "needs 48 bytes", "32 are there"}},
      {"RowNotWholeBlocks", WithTensor(q4), {"'t.weight'", "dimension 0 is 4", "32", "Q4_0"}},
  };
}

std::vector<HostileCase> Counts() {
  constexpr uint64_t kHuge = uint64_t{1} << 60;
  const std::string key = LeString("k");
  const std::string huge_string = Le(uint64_t{1} << 63);
  const std::string string_array = RawValue("k", 9, Array(8, 1) + huge_string);
  RawTensor long_name;
  RawGguf name_2_63 = WithTensor(long_name);
  name_2_63.tensors = huge_string + "t";
  return {
      {"KeyCount2to60",
       WithPreamble("GGUF", 3, 1, kHuge),
       {"key count is 1152921504606846976", "limit"}},
      {"KeyCountBeyondFile",
       WithPreamble("GGUF", 3, 1, 60000),
       {"key count is 60000", "room for at most"}},
      {"TensorCount2to60",
       WithPreamble("GGUF", 3, kHuge, 1),
       {"tensor count is 1152921504606846976", "limit"}},
      {"TensorCountBeyondFile",
       WithPreamble("GGUF", 3, 100000, 1),
       {"tensor count is 100000", "room for at most"}},
      {"KeyLength2to63",
       WithValues(1, huge_string),
       {"key 0 of 1", "length 9223372036854775808", "65535"}},
      {"StringLength2to63",
       WithValues(1, key + Le<uint32_t>(8) + huge_string),
       {"key 'k'", "9223372036854775808"}},
      {"TensorNameLength2to63", name_2_63, {"tensor 0 of 1", "9223372036854775808", "65535"}},
      {"ArrayLength2to62",
       WithValues(1, RawValue("k", 9, Array(0, uint64_t{1} << 62))),
       {"key 'k'", "array length is 4611686018427387904", "room for at most"}},
      {"ArrayOfStringsLength2to62",
       WithValues(1, RawValue("k", 9, Array(8, uint64_t{1} << 62))),
       {"key 'k'", "array length is 4611686018427387904"}},
      {"StringInArray2to63", WithValues(1, string_array), {"key 'k'", "9223372036854775808"}},
      {"ArrayOfArrays",
       WithValues(1, RawValue("k", 9, Array(9, 1) + Array(0, 1) + "x")),
       {"key 'k'", "arrays of arrays"}},
      {"ArrayOfUnknownType",
       WithValues(1, RawValue("k", 9, Array(13, 1) + "x")),
       {"key 'k'", "element type is 13"}},
      {"UnknownType", WithValues(1, RawValue("k", 77, "x")), {"key 'k'", "value type is 77"}},
      {"BoolOf2", WithValues(1, RawValue("k", 7, "\x02")), {"key 'k'", "bool of 2"}},
  };
}

std::vector<HostileCase> Names() {
  const std::string value = RawValue("k", 4, Le<uint32_t>(1));
  const std::string control = RawValue("\x1b[31m\xff", 77, "");
  RawTensor second;
  second.offset = 32;
  RawTensor nameless;
  nameless.name.clear();
  RawTensor overlapping;
  overlapping.name = "u.weight";
  return {
      {"EmptyKey", WithValues(1, RawValue("", 4, Le<uint32_t>(1))), {"key 0 of 1 is empty"}},
      {"RepeatedKey", WithValues(2, value + value), {"key 'k' is repeated"}},
      {"EmptyTensorName", WithTensor(nameless), {"tensor 0 of 1", "empty name"}},
      {"RepeatedTensor", TwoTensors(RawTensor(), second), {"tensor 't.weight' is repeated"}},
      {"OverlappingTensors",
       TwoTensors(RawTensor(), overlapping),
       {"'t.weight'", "'u.weight'", "overlap"}},
      {"KeyWithControlCharacters", WithValues(1, control), {"\\x1b[31m\\xff"}},
  };
}

std::vector<HostileCase> Placement() {
  const std::string wrong_kind = RawValue("general.alignment", 8, LeString("32"));
  return {
      {"Alignment0", WithAlignment(0), {"general.alignment is 0", "8 to 1048576"}},
      {"Alignment3", WithAlignment(3), {"general.alignment is 3", "power of two"}},
      {"Alignment2to30",
       WithAlignment(1u << 30),
       {"general.alignment is 1073741824", "8 to 1048576"}},
      {"AlignmentIsAString", WithValues(1, wrong_kind), {"general.alignment", "32-bit"}},
      {"OffsetNotAligned", WithOffset(8), {"'t.weight'", "offset is 8", "alignment 32"}},
      {"OffsetBeyondFile", WithOffset(uint64_t{1} << 40), {"'t.weight'", "0 are there"}},
      {"OffsetWraps", WithOffset(0xffffffffffffffe0u), {"'t.weight'", "offset"}},
      {"UnknownTensorType", WithType(99, 4), {"'t.weight'", "tensor type 99", "Q6_K"}},
      {"RemovedTensorType", WithType(4, 32), {"'t.weight'", "tensor type 4"}},
      {"WrongMagic", WithPreamble("GGML", 3, 1, 1), {"GGUF"}},
      {"Version1", WithPreamble("GGUF", 1, 1, 1), {"version is 1", "2 and 3"}},
      {"Version4", WithPreamble("GGUF", 4, 1, 1), {"version is 4", "2 and 3"}},
      {"BigEndian", WithPreamble("GGUF", 0x03000000, 1, 1), {"big-endian"}},
  };
}

std::vector<HostileCase> AllCases() {
  std::vector<HostileCase> all;
  for (const auto& part : {Dimensions(), Counts(), Names(), Placement()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

int64_t PeakBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

class F11_HostileHeader : public testing::TestWithParam<HostileCase> {};

TEST_P(F11_HostileHeader, IsRefusedByNameQuicklyAndCheaply) {
  const HostileCase& c = GetParam();
  const TempFile file(c.file.Bytes());
  const int64_t peak_before = PeakBytes();
  const auto begin = std::chrono::steady_clock::now();
  const auto opened = GgufFile::Open(file.path());
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  ASSERT_FALSE(opened.ok());
  const std::string message(opened.status().message());
  EXPECT_THAT(message, HasSubstr(file.path()));
  for (const std::string& part : c.says) EXPECT_THAT(message, HasSubstr(part));
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_LT(taken.count(), 1.0);
  EXPECT_LT(PeakBytes() - peak_before, 100'000'000);
}

INSTANTIATE_TEST_SUITE_P(Gguf, F11_HostileHeader, testing::ValuesIn(AllCases()),
                         [](const auto& info) { return info.param.name; });

TEST(F11_Baseline, TheUnchangedFileIsGood) {
  const std::string bytes = RawGguf().Bytes();
  const auto file = GgufFile::FromMemory(AsBytes(bytes), "x");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 1);
  EXPECT_TRUE((*file)->warnings().empty());
}

// Honest lengths, but of an array that would take forty times its bytes in memory.
TEST(F11_Baseline, ArraysAreLimitedInMemory) {
  constexpr uint64_t kLength = (1u << 21) + 1;
  const RawGguf raw =
      WithValues(1, RawValue("k", 9, Array(0, kLength) + std::string(kLength, 'x')));
  const std::string bytes = raw.Bytes();
  const int64_t peak_before = PeakBytes();
  const auto file = GgufFile::FromMemory(AsBytes(bytes), "x.gguf");
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("limit is 2097152"));
  EXPECT_LT(PeakBytes() - peak_before, 100'000'000);
}

// Every byte of a good header replaced by extreme ones: refused or accepted, never a fault (sanitizers watch).
TEST(F11_Baseline, NoSingleByteBreaksTheReader) {
  const std::string good = RawGguf().Bytes();
  int refused = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char byte : {'\0', '\x01', '\x7f', '\x80', '\xff'}) {
      std::string bytes = good;
      bytes[i] = byte;
      const auto file = GgufFile::FromMemory(AsBytes(bytes), "x.gguf");
      if (file.ok()) continue;
      ++refused;
      EXPECT_THAT(std::string(file.status().message()), HasSubstr("x.gguf: "));
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace kvring
