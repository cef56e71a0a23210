// SPDX-License-Identifier: Apache-2.0
// The printable stand-ins of byte-level BPE (Radford et al., GPT-2, 2019): vocabularies and merges spell every byte as one
// printable character. The 188 printable bytes of Latin-1 stand for themselves, the other 68 are U+0100 upwards in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvring {

// Bytes that a spelling stands for; nothing when a character of it is outside the alphabet.
std::optional<std::string> BytesFromSpelling(const std::string& spelling);

// The spelling of bytes.
std::string SpellingFromBytes(const std::string& bytes);

}  // namespace kvring
