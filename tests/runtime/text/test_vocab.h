// SPDX-License-Identifier: Apache-2.0
// Vocabularies and golden values for the tokenizer's tests.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/text/tokenizer.h"
#include "runtime/text/vocab_data.h"

namespace kvring {

// "<|endoftext|>" 0, "<|im_start|>" 1 (begin), "<|im_end|>" 2 (end), all control; "<tool>" 3, user-defined; then the 256
// bytes in order from kFirstByte, then what these merges make, each in turn: "left right" in GPT-2's spelling.
inline constexpr int32_t kEndOfText = 0, kBegin = 1, kEnd = 2, kTool = 3, kFirstByte = 4;
VocabData MakeVocab(const std::string& pre, const std::vector<std::string>& merges = {});

// Token of a single byte in MakeVocab's vocabularies.
inline int32_t ByteId(unsigned char byte) { return kFirstByte + byte; }
std::vector<int32_t> ByteIds(const std::string& text);

// The tokenizer of a vocabulary that must be fine.
std::unique_ptr<Tokenizer> MakeTokenizer(const VocabData& vocab);

// Path of the small real model, or nothing when it is not on this machine.
std::optional<std::string> RealModelPath();

std::string ReadWholeFile(const std::string& path);
// A file of tests/golden/text; tests run in the project's root.
nlohmann::json Golden(const std::string& name);

}  // namespace kvring
