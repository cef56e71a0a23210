// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/byte_alphabet.h"

#include <array>

#include "runtime/text/utf8.h"

namespace kvring {
namespace {

bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<uint32_t, 256> stand_in;     // code point of a byte
  std::array<int16_t, 256 + 68> byte_of;  // byte of a code point, -1 outside the alphabet

  Alphabet() {
    byte_of.fill(-1);
    uint32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      stand_in[byte] = StandsForItself(byte) ? byte : next++;
      byte_of[stand_in[byte]] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& GetAlphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

// Code point of the one- or two-byte character at p; nothing in the alphabet is longer.
uint32_t ShortCodePoint(const char* p, int length) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(p);
  return length == 1 ? bytes[0] : (bytes[0] & 0x1Fu) << 6 | (bytes[1] & 0x3Fu);
}

}  // namespace

std::optional<std::string> BytesFromSpelling(const std::string& spelling) {
  const Alphabet& alphabet = GetAlphabet();
  std::string bytes;
  for (size_t at = 0; at < spelling.size();) {
    const int length = Utf8CharLength(spelling.data() + at, spelling.size() - at);
    if (length != 1 && length != 2) return std::nullopt;
    const uint32_t code_point = ShortCodePoint(spelling.data() + at, length);
    if (code_point >= alphabet.byte_of.size() || alphabet.byte_of[code_point] < 0)
      return std::nullopt;
    bytes.push_back(static_cast<char>(alphabet.byte_of[code_point]));
    at += length;
  }
  return bytes;
}

std::string SpellingFromBytes(const std::string& bytes) {
  std::string spelling;
  for (const char byte : bytes) {
    AppendUtf8(GetAlphabet().stand_in[static_cast<uint8_t>(byte)], &spelling);
  }
  return spelling;
}

}  // namespace kvring
