// SPDX-License-Identifier: Apache-2.0
// Model files that the tests of this folder share.
#pragma once

#include <unistd.h>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>

#include "gtest/gtest.h"
#include "runtime/model/gguf.h"
#include "runtime/model/tiny_model.h"

namespace kvring {

inline std::span<const uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// A file of the given bytes, gone with the object.
class TempFile {
 public:
  explicit TempFile(const std::string& bytes) {
    static int count = 0;
    path_ =
        std::filesystem::temp_directory_path() /
        ("kvring_model_test_" + std::to_string(getpid()) + "_" + std::to_string(count++) + ".gguf");
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  ~TempFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// Options of a model that is small enough for every test.
inline TinyModelOptions SmallOptions() {
  TinyModelOptions options;
  options.hidden = 64;
  options.query_heads = 4;
  options.kv_heads = 2;
  options.head_dim = 16;
  options.ffn = 96;
  return options;
}

inline std::string TinyBytes(const TinyModelOptions& options) {
  auto writer = MakeTinyModel(options);
  EXPECT_TRUE(writer.ok()) << writer.status();
  return writer.ok() ? writer->Bytes() : "";
}

// The file of a writer; `bytes` keeps what the file views.
inline std::unique_ptr<GgufFile> ParseBytes(const std::string& bytes) {
  auto file = GgufFile::FromMemory(AsBytes(bytes), "test.gguf");
  EXPECT_TRUE(file.ok()) << file.status();
  return file.ok() ? std::move(*file) : nullptr;
}

// The small real model, or an empty path.
inline std::string RealModelPath() {
  const auto from = [](const char* name) {
    return std::string(std::getenv(name) == nullptr ? "" : std::getenv(name));
  };
  std::string path = from("KVRING_TEST_MODEL");
  if (path.empty()) {
    const std::string cache =
        from("XDG_CACHE_HOME").empty() ? from("HOME") + "/.cache" : from("XDG_CACHE_HOME");
    path = cache + "/kvring/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  }
  return std::filesystem::exists(path) ? path : "";
}

}  // namespace kvring
