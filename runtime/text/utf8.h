// SPDX-License-Identifier: Apache-2.0
// Well-formed UTF-8 (Unicode 15, table 3-7): no surrogates, no overlong forms, nothing beyond U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvring {

// Reads the character at p[0, n), n >= 1. Returns its length 1..4; or minus the length 1..3 of the longest prefix of a
// well-formed character there when it is cut off by the end of the text (held at least that long by a stream); or 0 when the
// bytes can never become one.
int Utf8CharLength(const char* p, size_t n);

// Length >= 1 of the ill-formed part at p: what one U+FFFD stands for. Only where Utf8CharLength gave 0 or less.
size_t IllFormedLength(const char* p, size_t n);

// Number of leading bytes of p[0, n) that are well-formed whole characters.
size_t ValidUtf8Prefix(const char* p, size_t n);

// Every ill-formed part becomes U+FFFD.
std::string ToValidUtf8(const std::string& text);

// Appends a code point, which must be a scalar value.
void AppendUtf8(uint32_t code_point, std::string* out);

}  // namespace kvring
