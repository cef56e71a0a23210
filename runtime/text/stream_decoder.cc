// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/stream_decoder.h"

#include <utility>

#include "runtime/text/tokenizer.h"
#include "runtime/text/utf8.h"

namespace kvring {
namespace {

// Where the beginning of a character that more bytes could complete starts; text.size() when there is none.
size_t OpenCharacter(const std::string& text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const size_t at = text.size() - back;
    if (Utf8CharLength(text.data() + at, back) == -static_cast<int>(back)) return at;
  }
  return text.size();
}

}  // namespace

std::string StreamDecoder::Push(int32_t id) {
  if (!tokenizer_->Contains(id) || tokenizer_->IsControl(id)) return "";
  std::string text = std::exchange(held_, "") + tokenizer_->Piece(id);
  const size_t open = OpenCharacter(text);
  held_ = text.substr(open);
  text.resize(open);
  return ToValidUtf8(text);
}

std::string StreamDecoder::Finish() { return ToValidUtf8(std::exchange(held_, "")); }

}  // namespace kvring
