// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/utf8.h"

#include <cstring>

namespace kvring {
namespace {

// What may follow a lead byte: the character's length and the range of its second byte (Unicode 15, table 3-7). All later
// bytes are 80..BF. Length 0: never a lead byte.
struct Lead {
  int length;
  uint8_t second_low, second_high;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};  // below: overlong
  if (byte == 0xED) return {3, 0x80, 0x9F};  // above: surrogates
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};  // below: overlong
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // above: beyond U+10FFFF
  return {0, 0, 0};
}

// Number of bytes at p that begin the character its lead byte announces, at least 1.
size_t PrefixLength(const char* p, size_t n, const Lead& lead) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(p);
  if (n < 2 || lead.length < 2) return 1;
  if (bytes[1] < lead.second_low || bytes[1] > lead.second_high) return 1;
  size_t have = 2;
  while (have < n && have < static_cast<size_t>(lead.length) && (bytes[have] & 0xC0) == 0x80)
    ++have;
  return have;
}

}  // namespace

int Utf8CharLength(const char* p, size_t n) {
  const Lead lead = LeadOf(static_cast<uint8_t>(*p));
  if (lead.length <= 1) return lead.length;
  const size_t have = PrefixLength(p, n, lead);
  if (have == static_cast<size_t>(lead.length)) return lead.length;
  return have == n ? -static_cast<int>(have) : 0;
}

size_t IllFormedLength(const char* p, size_t n) {
  return PrefixLength(p, n, LeadOf(static_cast<uint8_t>(*p)));
}

size_t ValidUtf8Prefix(const char* p, size_t n) {
  constexpr uint64_t kHighBits = 0x8080808080808080ull;
  size_t at = 0;
  while (at < n) {
    uint64_t word = 0;
    if (at + sizeof(word) <= n) {  // eight ASCII bytes at a time
      std::memcpy(&word, p + at, sizeof(word));
      if ((word & kHighBits) == 0) {
        at += sizeof(word);
        continue;
      }
    }
    const int length = Utf8CharLength(p + at, n - at);
    if (length <= 0) break;
    at += length;
  }
  return at;
}

std::string ToValidUtf8(const std::string& text) {
  std::string out;
  size_t at = 0;
  while (true) {
    const size_t valid = ValidUtf8Prefix(text.data() + at, text.size() - at);
    out.append(text, at, valid);
    at += valid;
    if (at == text.size()) return out;
    AppendUtf8(0xFFFD, &out);
    at += IllFormedLength(text.data() + at, text.size() - at);
  }
}

void AppendUtf8(uint32_t code_point, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace kvring
