// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/tiny_vocab.h"

#include <set>
#include <sstream>

#include "runtime/model/gguf_writer.h"
#include "runtime/text/vocab_data.h"

namespace kvring {
namespace {

// Words of everyday prose, frequent ones first; each is merged with the space before it.
constexpr char kWords[] =
    "the of and to in that was it he his is with as for had you not be her on at by which have or "
    "from this him but all "
    "she they were my are me one their so an said them we who would been will no when there if "
    "more out up into do any "
    "your what has man could other than our some very time upon about may its only now like little "
    "then can should made "
    "did us such great before must two these see know over much down after first good men own "
    "never most old shall day "
    "where those came come himself way work life without go make well through being long say might "
    "how am too even def "
    "again many back here think every people went same last thought away under take found hand "
    "eyes still place while";

constexpr char kChatTemplate[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + "
    "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

std::string Utf8(uint32_t code_point) {  // below 0x800 is all that byte spellings need
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3f))};
}

// GPT-2's spelling of bytes: printable Latin-1 characters stand for themselves, the rest follow from U+0100 on.
std::vector<std::string> ByteSpellings() {
  std::vector<std::string> spellings;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    spellings.push_back(Utf8(printable ? byte : next++));
  }
  return spellings;
}

}  // namespace

TinyVocab MakeTinyVocab(int size) {
  TinyVocab vocab;
  vocab.tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  vocab.types.assign(TinyVocab::kControls, static_cast<int32_t>(TokenType::kControl));
  const std::vector<std::string> bytes = ByteSpellings();
  vocab.tokens.insert(vocab.tokens.end(), bytes.begin(), bytes.end());
  std::set<std::string> seen;
  std::istringstream words(kWords);
  for (std::string word; words >> word;) {
    std::string left = bytes[' '];
    for (const char letter : word) {
      const std::string merged = left + letter;
      if (static_cast<int>(vocab.tokens.size()) < size && seen.insert(merged).second) {
        vocab.merges.push_back(left + " " + letter);
        vocab.tokens.push_back(merged);
      }
      left = merged;
    }
  }
  vocab.types.resize(vocab.tokens.size(), static_cast<int32_t>(TokenType::kNormal));
  for (int i = 0; static_cast<int>(vocab.tokens.size()) < size; ++i) {
    vocab.tokens.push_back(absl::StrCat("<|unused_", i, "|>"));
    vocab.types.push_back(static_cast<int32_t>(TokenType::kUnused));
  }
  return vocab;
}

void WriteTinyVocab(const TinyVocab& vocab, GgufWriter& writer) {
  writer.Set("tokenizer.ggml.model", std::string("gpt2"));
  writer.Set("tokenizer.ggml.pre", std::string("smollm"));
  writer.SetStrings("tokenizer.ggml.tokens", vocab.tokens);
  writer.SetInts("tokenizer.ggml.token_type", vocab.types);
  writer.SetStrings("tokenizer.ggml.merges", vocab.merges);
  writer.Set("tokenizer.ggml.bos_token_id", uint32_t{TinyVocab::kImStart});
  writer.Set("tokenizer.ggml.eos_token_id", uint32_t{TinyVocab::kImEnd});
  writer.Set("tokenizer.ggml.unknown_token_id", uint32_t{TinyVocab::kEndOfText});
  writer.Set("tokenizer.ggml.padding_token_id", uint32_t{TinyVocab::kImEnd});
  writer.Set("tokenizer.ggml.add_bos_token", false);
  writer.Set("tokenizer.chat_template", std::string(kChatTemplate));
}

}  // namespace kvring
