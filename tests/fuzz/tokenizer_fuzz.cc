// SPDX-License-Identifier: Apache-2.0
// Any bytes as a text, and any bytes as a vocabulary. With a complete vocabulary decode(encode(x)) == x must hold; with a
// mutilated one nothing may crash and what is missing must be counted.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "runtime/text/byte_alphabet.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/stream_decoder.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/utf8.h"

namespace kvring {
namespace {

constexpr const char* kPreTokenizers[] = {"smollm", "gpt-2", "llama-bpe", "qwen2"};
constexpr size_t kNumPreTokenizers = sizeof(kPreTokenizers) / sizeof(kPreTokenizers[0]);

void Check(bool holds) {
  if (!holds) std::abort();
}

VocabData CompleteVocab(const char* pre) {
  VocabData vocab;
  vocab.model = "gpt2";
  vocab.pre = pre;
  vocab.tokens = {"<|im_start|>", "<|im_end|>", "<tool>"};
  vocab.types = {TokenType::kControl, TokenType::kControl, TokenType::kUserDefined};
  for (int byte = 0; byte < 256; ++byte)
    vocab.tokens.push_back(SpellingFromBytes(std::string(1, static_cast<char>(byte))));
  vocab.merges = {"a b", "ab ab", "\u0120 a", "\u0120 \u0120", "\u0120\u0120 \u0120\u0120",
                  "< |", "t h",   "th e"};
  for (const std::string& merge : vocab.merges) {
    const size_t space = merge.find(' ');
    vocab.tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
  }
  vocab.types.resize(vocab.tokens.size(), TokenType::kNormal);
  vocab.bos = 0, vocab.eos = 1;
  return vocab;
}

void CheckRoundTrip(const Tokenizer& tokenizer, const std::string& text) {
  const auto encoded = tokenizer.Encode(text, {BeginToken::kNever, false});
  Check(encoded.ok() && encoded->dropped_bytes == 0);
  Check(*tokenizer.Decode(encoded->ids) == text);
  StreamDecoder stream(&tokenizer);
  std::string printed;
  for (const int32_t id : encoded->ids) {
    Check(!tokenizer.IsControl(id));
    printed += stream.Push(id);
  }
  Check(printed + stream.Finish() == ToValidUtf8(text));
}

// Takes the input apart for the making of a vocabulary: pieces end at a zero byte.
class Pieces {
 public:
  explicit Pieces(const std::string& bytes) : bytes_(bytes) {}
  bool empty() const { return at_ >= bytes_.size(); }
  std::string Next() {
    const size_t end = std::min(bytes_.find('\0', at_), bytes_.size());
    const std::string piece = bytes_.substr(at_, end - at_);
    at_ = std::min(end + 1, bytes_.size());
    return piece;
  }

 private:
  const std::string& bytes_;
  size_t at_ = 0;
};

void TryVocab(const char* pre, const std::string& bytes) {
  VocabData vocab = CompleteVocab(pre);
  Pieces pieces(bytes);
  const std::string text = pieces.Next();
  vocab.chat_template = pieces.Next();
  while (!pieces.empty()) {
    const std::string piece = pieces.Next();
    if (piece.empty()) continue;
    const unsigned char kind = static_cast<unsigned char>(piece[0]);
    if (kind % 3 == 0) {
      vocab.merges.push_back(piece.substr(1));
    } else if (kind % 3 == 1) {
      vocab.tokens.push_back(piece.substr(1));
      vocab.types.push_back(static_cast<TokenType>(1 + kind / 3 % 6));
    } else {
      vocab.tokens[kind % vocab.tokens.size()] = piece.substr(1);
    }
  }
  const auto tokenizer = Tokenizer::Create(vocab);
  if (!tokenizer.ok()) return;
  const auto encoded = (*tokenizer)->Encode(text, {BeginToken::kModelRule, true});
  Check(encoded.ok() && (*tokenizer)->Decode(encoded->ids, true).ok());
  const auto chat = ChatTemplate::Recognize(vocab);
  if (!chat.ok()) return;
  const auto segments = chat->Render({{"system", text}, {"user", text}, {"assistant", text}}, true);
  Check(segments.ok() && (*tokenizer)->EncodeSegments(*segments).ok());
}

void FuzzOne(const uint8_t* data, size_t size) {
  if (size == 0) return;
  static const std::vector<std::unique_ptr<Tokenizer>>& tokenizers = *[] {
    auto* all = new std::vector<std::unique_ptr<Tokenizer>>();
    for (const char* pre : kPreTokenizers) all->push_back(*Tokenizer::Create(CompleteVocab(pre)));
    return all;
  }();
  const size_t which = data[0] % kNumPreTokenizers;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] < 128) {
    CheckRoundTrip(*tokenizers[which], bytes);
  } else {
    TryVocab(kPreTokenizers[which], bytes);
  }
}

}  // namespace
}  // namespace kvring

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvring::FuzzOne(data, size);
  return 0;
}
