// SPDX-License-Identifier: Apache-2.0
// Tensor files out and in, and files that lie (F11): what is wrong is named with file and field, at once and in little memory.
//
// The written form was read by the Python package safetensors 0.8.0 by hand: safe_open("x.safetensors", "numpy") gave the
// keys, the metadata and the numbers of Sample(), and a file of its save_file with metadata was read here.
#include "kvstore/tensor_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace kvring {
namespace {

using ::testing::HasSubstr;

TensorFile Sample() {
  TensorFile file;
  file.metadata = {{"format", "test"}, {"quote", "a \"b\" \\ \n \xc3\xa9"}};
  file.tensors["b/k_lo"] = {{2, 3}, {1.0f, -2.5f, 3.0e-41f, 4.0f, 65504.0f, -0.0f}};
  file.tensors["a"] = {{1}, {7.0f}};
  file.tensors["none"] = {{0, 5}, {}};
  file.tensors["scalar"] = {{}, {0.1f}};
  return file;
}

std::string WithHeader(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + header + data;
}

std::string ScratchFile(const std::string& name) {
  return (std::filesystem::temp_directory_path() / ("kvring-" + std::to_string(getpid()) + name))
      .string();
}

TEST(TensorFile, ComesBackAsItWas) {
  const std::string bytes = SerializeTensorFile(Sample());
  EXPECT_EQ(bytes, SerializeTensorFile(Sample()));
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  EXPECT_EQ(header % 8, 0u);
  const auto parsed = ParseTensorFile(bytes, "sample");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->metadata, Sample().metadata);
  ASSERT_EQ(parsed->tensors.size(), Sample().tensors.size());
  for (const auto& [name, tensor] : Sample().tensors) {
    EXPECT_EQ(parsed->tensors.at(name).shape, tensor.shape) << name;
    EXPECT_EQ(parsed->tensors.at(name).values, tensor.values) << name;
  }
  EXPECT_TRUE(std::signbit(parsed->tensors.at("b/k_lo").values[5]));
  EXPECT_EQ(SerializeTensorFile(*parsed), bytes);
  EXPECT_TRUE(ParseTensorFile(SerializeTensorFile({}), "empty").ok());
}

TEST(TensorFile, OnDisk) {
  const std::string path = ScratchFile("tensors");
  ASSERT_TRUE(WriteTensorFile(Sample(), path).ok());
  ASSERT_TRUE(WriteTensorFile(Sample(), path).ok()) << "over an older one";
  const auto read = ReadTensorFile(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(SerializeTensorFile(*read), SerializeTensorFile(Sample()));
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(path).parent_path())) {
    EXPECT_THAT(entry.path().string(), ::testing::Not(HasSubstr(path + ".unfinished")));
  }
  std::filesystem::remove(path);
  EXPECT_EQ(ReadTensorFile(path).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ReadTensorFile("/tmp").status().message()),
              HasSubstr("/tmp: not a file"));
  const absl::Status nowhere = WriteTensorFile(Sample(), "/no-such-folder/x");
  EXPECT_EQ(nowhere.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(nowhere.message()), HasSubstr("/no-such-folder/x"));
}

// Bytes as save_file of the Python package makes them: no spaces after separators, padded with spaces, data in order of size.
TEST(TensorFile, ReadsWhatOthersWrite) {
  const float data[] = {1.5f, 2.5f, -3.0f};
  const auto parsed = ParseTensorFile(
      WithHeader(
          R"({"__metadata__":{"who":"me"},"y":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
          R"("x":{"dtype":"F32","shape":[1,1],"data_offsets":[8,12]}}   )",
          std::string(reinterpret_cast<const char*>(data), sizeof(data))),
      "other");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->tensors.at("x").values, std::vector<float>{-3.0f});
  EXPECT_EQ(parsed->metadata.at("who"), "me");
}

struct Hostile {
  const char* what;
  std::string bytes;
  const char* message;
};

// `a` with these fields, 8 bytes of data.
std::string A(const std::string& fields, const std::string& more = "") {
  return WithHeader("{\"a\":{" + fields + "}" + more + "}", std::string(8, '\1'));
}

constexpr char kGood[] = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";

std::vector<Hostile> HostileOffsets() {
  std::string longest(8, '\0');
  longest[7] = '\x80';  // 2^63
  return {
      {"header length 2^63", longest + "{}", "header length 9223372036854775808"},
      {"header length 2^64 - 1", std::string(8, '\xff') + "{}", "header length 1844674407370955"},
      {"header over the limit", WithHeader(std::string(2 << 20, ' '), ""), "header length 2097152"},
      {"reversed", A(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"),
       "'a': data_offsets 8 to 0"},
      {"past the end", A(R"("dtype":"F32","shape":[3],"data_offsets":[0,12])"),
       "'a': data_offsets 0 to 12"},
      {"far past the end",
       A(R"("dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,18446744073709551615])"),
       "'a': data_offsets 18446744073709551608"},
      {"overlapping", A(kGood, R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})"),
       "'b': data_offsets begin at 4"},
      {"a hole", A(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"),
       "'a': data_offsets begin at 4"},
      {"unused data", A(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"),
       "8 bytes of data, tensors have 4"},
  };
}

std::vector<Hostile> HostileShapes() {
  return {
      {"shape too small", A(R"("dtype":"F32","shape":[1],"data_offsets":[0,8])"),
       "'a': shape of 1 elements"},
      {"shape too large", A(R"("dtype":"F32","shape":[4,4],"data_offsets":[0,8])"),
       "'a': its shape is larger"},
      {"shape that wraps",
       A(R"("dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8])"),
       "'a': its shape"},
      {"shape of 2^63", A(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8])"),
       "'a': its shape"},
      {"shape of 0 times 2^64 - 1",
       A(R"("dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0])"),
       "'a': its shape"},
      {"shape below zero", A(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"),
       "'a', 'shape': a negative number"},
      {"shape with a fraction", A(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"),
       "'a', 'shape'"},
      {"shape beyond 64 bits",
       A(R"("dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8])"), "'a', 'shape'"},
      {"number beyond double", A(R"("dtype":"F32","shape":[1e999],"data_offsets":[0,8])"),
       "not JSON"},
      {"shape is no list", A(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"),
       "'a', 'shape': a number"},
      {"shape in a shape", A(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"),
       "'a', 'shape': a list"},
  };
}

std::vector<Hostile> HostileFields() {
  const std::string good = kGood;
  return {
      {"one offset", A(R"("dtype":"F32","shape":[2],"data_offsets":[8])"),
       "'a' has not dtype, shape and two"},
      {"three offsets", A(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])"),
       "'a', 'data_offsets': a number"},
      {"no offsets", A(R"("dtype":"F32","shape":[2])"), "'a' has not dtype, shape and two"},
      {"unknown dtype", A(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])"),
       "'a' has dtype 'F33'"},
      {"another dtype", A(R"("dtype":"BF16","shape":[4],"data_offsets":[0,8])"),
       "'a' has dtype 'BF16'"},
      {"dtype is no text", A(R"("dtype":32,"shape":[2],"data_offsets":[0,8])"),
       "'a', 'dtype': a number"},
      {"unknown field", A(good + R"(,"color":"red")"), "'a', 'color' is no field"},
      {"a field twice", A(good + R"(,"dtype":"F32")"), "'a', 'dtype' twice"},
  };
}

std::vector<Hostile> HostileText() {
  std::string deep = "{\"a\":";
  for (int i = 0; i < 200'000; ++i) deep += i % 2 == 0 ? "[" : "{\"a\":";
  std::string many = "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8],\"shape\":[1";
  for (int i = 0; i < 400'000; ++i) many += ",1";
  std::string names = "{\"__metadata__\":{\"a\":\"\"";
  for (int i = 0; i < 80'000; ++i) names += ",\"" + std::to_string(i) + "\":\"\"";
  return {
      {"a name twice", A(kGood, R"(,"a":{"dtype":"F32","shape":[0],"data_offsets":[8,8]})"),
       "'a' twice"},
      {"metadata twice", WithHeader(R"({"__metadata__":{"a":"b"},"__metadata__":{}})", ""),
       "'__metadata__' twice"},
      {"a key of metadata twice", WithHeader(R"({"__metadata__":{"a":"b","a":"c"}})", ""),
       "__metadata__, 'a' twice"},
      {"metadata that is no text", WithHeader(R"({"__metadata__":{"a":{}}})", ""),
       "__metadata__, 'a': an object"},
      {"a tensor that is none", WithHeader(R"({"a":null})", ""), "'a': null"},
      {"no object", WithHeader("[]", ""), "the header: a list"},
      {"no JSON", WithHeader("{\"a\":", ""), "not JSON at byte"},
      {"two objects", WithHeader("{}{}", ""), "not JSON at byte"},
      {"no text at all", WithHeader("", ""), "not JSON at byte"},
      {"bytes that are no UTF-8", WithHeader("{\"\xff\":{}}", ""), "not JSON at byte"},
      {"deep", WithHeader(deep, ""), "a list where none may be"},
      {"many dimensions", WithHeader(many + "]}}", std::string(8, 0)), "more than 8 dimensions"},
      {"many names, then damage", WithHeader(names, ""), "not JSON at byte"},
      {"empty", "", "0 bytes"},
  };
}

std::vector<Hostile> HostileFiles() {
  std::vector<Hostile> files;
  for (const auto& some : {HostileOffsets(), HostileShapes(), HostileFields(), HostileText()}) {
    files.insert(files.end(), some.begin(), some.end());
  }
  return files;
}

int64_t PeakBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};
}

TEST(TensorFile, HostileHeadersAreRefusedWithFileAndField) {
  const std::vector<Hostile> files = HostileFiles();
  const int64_t peak = PeakBytes();
  for (const Hostile& hostile : files) {
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = ParseTensorFile(hostile.bytes, "dir/x.cal").status();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    ASSERT_FALSE(status.ok()) << hostile.what;
    EXPECT_TRUE(status.code() == absl::StatusCode::kDataLoss ||
                status.code() == absl::StatusCode::kInvalidArgument)
        << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("dir/x.cal: ")) << hostile.what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(hostile.message)) << hostile.what;
    EXPECT_LT(status.message().size(), 300u) << hostile.what;
    EXPECT_LT(took.count(), 1.0) << hostile.what;
  }
  EXPECT_LT(PeakBytes() - peak, int64_t{100} << 20);
}

TEST(TensorFile, EveryCutIsRefused) {
  const std::string bytes = SerializeTensorFile(Sample());
  for (size_t tenth = 0; tenth < 10; ++tenth) {
    const size_t size = bytes.size() * tenth / 10;
    const absl::Status status = ParseTensorFile(bytes.substr(0, size), "cut").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << size << " bytes: " << status;
  }
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ParseTensorFile(bytes.substr(0, size), "cut").ok()) << size;
  }
  EXPECT_FALSE(ParseTensorFile(bytes + '\0', "longer").ok());
}

// Any byte of the header changed: refused or another file, never out of bounds.
TEST(TensorFile, ChangedBytesOfTheHeader) {
  const std::string bytes = SerializeTensorFile(Sample());
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  int refused = 0;
  for (size_t at = 0; at < 8 + header; ++at) {
    for (const char value : {'\0', '"', '}', '0', '9', '\x80', '\xff'}) {
      std::string changed = bytes;
      changed[at] = value;
      const auto parsed = ParseTensorFile(changed, "changed");
      if (!parsed.ok()) {
        ++refused;
        continue;
      }
      size_t elements = 0;
      for (const auto& [name, tensor] : parsed->tensors) elements += tensor.values.size();
      EXPECT_EQ(elements * 4, bytes.size() - 8 - header);
    }
  }
  EXPECT_GT(refused, static_cast<int>(header) * 3) << "most changes hit structure";
}

}  // namespace
}  // namespace kvring
