// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/text/test_vocab.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/text/byte_alphabet.h"

namespace kvring {

VocabData MakeVocab(const std::string& pre, const std::vector<std::string>& merges) {
  VocabData vocab;
  vocab.model = "gpt2";
  vocab.pre = pre;
  vocab.tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"};
  vocab.types = {TokenType::kControl, TokenType::kControl, TokenType::kControl,
                 TokenType::kUserDefined};
  for (int byte = 0; byte < 256; ++byte) {
    vocab.tokens.push_back(SpellingFromBytes(std::string(1, static_cast<char>(byte))));
  }
  vocab.merges = merges;
  for (const std::string& merge : merges) {
    std::string token = merge;
    token.erase(token.find(' ', 1), 1);
    if (std::count(vocab.tokens.begin(), vocab.tokens.end(), token) == 0)
      vocab.tokens.push_back(token);
  }
  vocab.types.resize(vocab.tokens.size(), TokenType::kNormal);
  vocab.bos = kBegin;
  vocab.eos = kEnd;
  return vocab;
}

std::vector<int32_t> ByteIds(const std::string& text) {
  std::vector<int32_t> ids;
  for (const char byte : text) ids.push_back(ByteId(static_cast<unsigned char>(byte)));
  return ids;
}

std::unique_ptr<Tokenizer> MakeTokenizer(const VocabData& vocab) {
  auto tokenizer = Tokenizer::Create(vocab);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
}

std::optional<std::string> RealModelPath() {
  std::filesystem::path path;
  if (const char* named = std::getenv("KVRING_TEST_MODEL")) {
    path = named;
  } else {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    path = cache != nullptr ? cache : std::string(home != nullptr ? home : ".") + "/.cache";
    path /= "kvring/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  }
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path.string();
}

std::string ReadWholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << "cannot read " << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

nlohmann::json Golden(const std::string& name) {
  return nlohmann::json::parse(ReadWholeFile("tests/golden/text/" + name));
}

}  // namespace kvring
