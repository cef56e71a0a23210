// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/utf8.h"

#include <gtest/gtest.h>

namespace kvring {
namespace {

// Decides by the arithmetic of the encoding instead of by a table of byte ranges.
bool IsWellFormed(const std::string& character) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<uint8_t>(character[i]));
  };
  const size_t length = byte(0) < 0x80       ? 1
                        : byte(0) >> 5 == 6  ? 2
                        : byte(0) >> 4 == 14 ? 3
                        : byte(0) >> 3 == 30 ? 4
                                             : 0;
  if (length != character.size()) return false;
  uint32_t code_point = length == 1 ? byte(0) : byte(0) & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if (byte(i) >> 6 != 2) return false;
    code_point = code_point << 6 | (byte(i) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  return code_point >= kLeast[length] && code_point <= 0x10FFFF &&
         (code_point < 0xD800 || code_point > 0xDFFF);
}

TEST(Utf8, EveryFirstAndSecondByteWithThirdBytesAroundTheBorders) {
  constexpr int kThird[] = {0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF};
  for (int code = 0; code < 1 << 16; ++code) {
    for (const int third : kThird) {
      const char bytes[] = {static_cast<char>(code >> 8), static_cast<char>(code),
                            static_cast<char>(third)};
      const int length = Utf8CharLength(bytes, 3);
      for (int n = 1; n <= 3; ++n) {
        ASSERT_EQ(IsWellFormed(std::string(bytes, n)), n == length)
            << std::hex << code << " " << third;
      }
    }
  }
}

TEST(Utf8, EveryScalarValueIsRead) {
  for (uint32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
    if (code_point >= 0xD800 && code_point <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(code_point, &text);
    ASSERT_TRUE(IsWellFormed(text)) << std::hex << code_point;
    ASSERT_EQ(Utf8CharLength(text.data(), text.size()), static_cast<int>(text.size()))
        << std::hex << code_point;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      ASSERT_EQ(Utf8CharLength(text.data(), cut), -static_cast<int>(cut)) << std::hex << code_point;
    }
  }
}

TEST(Utf8, IllFormedPartsBecomeOneReplacementEach) {
  const std::string r = "\uFFFD";
  EXPECT_EQ(ToValidUtf8("a\xE6\xAD"), "a" + r);       // cut off: one part
  EXPECT_EQ(ToValidUtf8("\xC0\x80"), r + r);          // overlong: C0 begins nothing
  EXPECT_EQ(ToValidUtf8("\xED\xA0\x80"), r + r + r);  // surrogate
  EXPECT_EQ(ToValidUtf8("\xF5\x80\x80\x80"), r + r + r + r);
  EXPECT_EQ(ToValidUtf8("\xF0\x9F\x98x"), r + "x");
  EXPECT_EQ(ToValidUtf8("\xF0\x9F\x98\x80"), "\U0001F600");
  EXPECT_EQ(ToValidUtf8(std::string("\0\xFF", 2)), std::string("\0", 1) + r);
}

TEST(Utf8, ValidPrefixStopsAtTheFirstBadByte) {
  for (size_t at : {0, 1, 7, 8, 9, 63, 64, 1000}) {
    std::string text(2000, 'x');
    EXPECT_EQ(ValidUtf8Prefix(text.data(), text.size()), text.size());
    text[at] = '\xFF';
    EXPECT_EQ(ValidUtf8Prefix(text.data(), text.size()), at);
  }
}

}  // namespace
}  // namespace kvring
