// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/text/bpe.h"
#include "runtime/text/byte_alphabet.h"
#include "runtime/text/pre_tokenizer.h"
#include "runtime/text/special_tokens.h"
#include "runtime/text/utf8.h"

namespace kvring {
namespace {

// Places inside a text are 32-bit in the merge lists; a larger document comes in parts.
constexpr size_t kMaxTextBytes = std::numeric_limits<int32_t>::max();

absl::Status CheckRole(const VocabData& vocab, const char* role, int32_t id) {
  if (id >= -1 && id < static_cast<int64_t>(vocab.tokens.size())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tokenizer: the ", role, " token is ", id,
                                                 ", but there are ", vocab.tokens.size(),
                                                 " tokens"));
}

absl::Status CheckVocab(const VocabData& vocab) {
  if (vocab.model != "gpt2") {
    return absl::UnimplementedError(absl::StrCat("tokenizer: vocabulary of kind '", vocab.model,
                                                 "'; kvring reads byte-level BPE ('gpt2')"));
  }
  if (vocab.tokens.empty() || vocab.tokens.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer: ", vocab.tokens.size(), " tokens"));
  }
  if (vocab.types.size() != vocab.tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tokenizer: ", vocab.types.size(), " token types for ", vocab.tokens.size(), " tokens"));
  }
  KVRING_RETURN_IF_ERROR(CheckRole(vocab, "begin", vocab.bos));
  KVRING_RETURN_IF_ERROR(CheckRole(vocab, "end", vocab.eos));
  return CheckRole(vocab, "end-of-turn", vocab.eot);
}

// Merged tokens print their bytes; spelled ones, and any outside the byte alphabet, print as they are written.
std::string PieceOf(const VocabData& vocab, size_t id, bool is_control) {
  const std::string& spelling = vocab.tokens[id];
  if (is_control || vocab.types[id] == TokenType::kUserDefined) return spelling;
  return BytesFromSpelling(spelling).value_or(spelling);
}

// text[0, bytes) with every ill-formed byte replaced by U+0001, byte for byte: patterns need well-formed text, and U+0001 is
// of the class that such bytes belong to (no letter, numeral or space).
std::string ShadowOf(const char* text, size_t bytes, size_t valid, int64_t* invalid_bytes) {
  std::string shadow(text, bytes);
  for (size_t at = valid; at < bytes; at += ValidUtf8Prefix(text + at, bytes - at)) {
    const size_t length = IllFormedLength(text + at, bytes - at);
    std::fill_n(shadow.begin() + at, length, '\x01');
    *invalid_bytes += length;
    at += length;
  }
  return shadow;
}

std::vector<Segment> JoinPlain(const std::vector<Segment>& segments,
                               const SpellingMatcher& specials) {
  std::vector<Segment> joined;
  for (const Segment& segment : segments) {
    const bool is_token = segment.is_control && specials.Lookup(segment.text) >= 0;
    if (!is_token && !joined.empty() && !joined.back().is_control) {
      joined.back().text += segment.text;
    } else {
      joined.push_back({segment.text, is_token});
    }
  }
  return joined;
}

}  // namespace

struct Tokenizer::Impl {
  std::vector<std::string> pieces;
  std::vector<bool> is_control;
  std::vector<int32_t> ends;
  int32_t bos = -1, eos = -1, eot = -1;
  bool wants_bos = false;
  std::string wants_bos_why;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<BpeModel> bpe;
  std::unique_ptr<SpellingMatcher>
      in_plain_text;  // user-defined tokens: spelled out, but nobody's control
  std::unique_ptr<SpellingMatcher> specials;  // those, the controls, and tokens in a role

  absl::Status Init(const VocabData& vocab);
  void InitSpellings(const VocabData& vocab);
  void InitBeginRule(const VocabData& vocab);
};

void Tokenizer::Impl::InitSpellings(const VocabData& vocab) {
  std::vector<int32_t> plain, all;
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    const int32_t id = static_cast<int32_t>(i);
    const bool is_user = vocab.types[i] == TokenType::kUserDefined && !is_control[i];
    if (is_user) plain.push_back(id);
    if (is_user || is_control[i] || id == bos || id == eos || id == eot) all.push_back(id);
  }
  in_plain_text = std::make_unique<SpellingMatcher>(vocab, plain);
  specials = std::make_unique<SpellingMatcher>(vocab, all);
}

void Tokenizer::Impl::InitBeginRule(const VocabData& vocab) {
  const bool asked = vocab.add_bos.value_or(pre_tokenizer->adds_bos());
  wants_bos = asked && bos >= 0;
  wants_bos_why = vocab.add_bos
                      ? absl::StrCat("the file's add_bos_token is ", asked ? "true" : "false")
                      : absl::StrCat("the file has no add_bos_token and pre-tokenizer ", vocab.pre,
                                     asked ? " adds one" : " adds none");
  if (asked && bos < 0) absl::StrAppend(&wants_bos_why, ", but the file names no begin token");
}

absl::Status Tokenizer::Impl::Init(const VocabData& vocab) {
  KVRING_RETURN_IF_ERROR(CheckVocab(vocab));
  KVRING_ASSIGN_OR_RETURN(pre_tokenizer, PreTokenizer::Create(vocab.pre));
  bos = vocab.bos, eos = vocab.eos, eot = vocab.eot;
  is_control = ControlTokens(vocab);
  ends = EndOfGenerationTokens(vocab, is_control);
  std::vector<bool> reachable(vocab.tokens.size());
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    reachable[id] = !is_control[id] && vocab.types[id] != TokenType::kUnused;
    pieces.push_back(PieceOf(vocab, id, is_control[id]));
  }
  KVRING_ASSIGN_OR_RETURN(bpe, BpeModel::Create(vocab, reachable, pre_tokenizer->whole_words()));
  if (bpe->num_byte_tokens() == 0) {
    return absl::InvalidArgumentError(
        "tokenizer: none of the 256 byte tokens is in the vocabulary");
  }
  InitSpellings(vocab);
  InitBeginRule(vocab);
  return absl::OkStatus();
}

// One call of Encode: what it works with and what it has produced so far.
class Tokenizer::Encoding {
 public:
  Encoding(const Impl& impl, const EncodeOptions& options)
      : impl_(impl),
        options_(options),
        spelled_(options.parse_special ? *impl.specials : *impl.in_plain_text) {}

  void AddControl(int32_t id) { AddSpecial(id, true); }
  absl::Status AddPlain(const std::string& text);
  EncodeResult Finish();

 private:
  void AddSpecial(int32_t id, bool is_control);
  absl::Status AddWords(const char* text, size_t bytes);

  const Impl& impl_;
  const EncodeOptions options_;
  const SpellingMatcher& spelled_;  // what plain text may become in one piece
  bool starts_with_bos_ = false;
  EncodeResult result_;
  PreTokenizer::Scratch pattern_scratch_;
  BpeModel::Scratch merge_scratch_;
};

void Tokenizer::Encoding::AddSpecial(int32_t id, bool is_control) {
  if (is_control && id == impl_.bos && result_.ids.empty()) starts_with_bos_ = true;
  result_.ids.push_back(id);
}

absl::Status Tokenizer::Encoding::AddPlain(const std::string& text) {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("text is ", text.size(), " bytes, limit is ", kMaxTextBytes));
  }
  for (size_t at = 0; at < text.size();) {
    const SpellingMatcher::Hit hit = spelled_.Find(text.data(), text.size(), at);
    const size_t end = hit.bytes == 0 ? text.size() : hit.begin;
    KVRING_RETURN_IF_ERROR(
        Annotate(AddWords(text.data() + at, end - at), absl::StrCat("text from byte ", at)));
    if (hit.bytes != 0) AddSpecial(hit.id, options_.parse_special);
    at = end + hit.bytes;
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Encoding::AddWords(const char* text, size_t bytes) {
  const size_t valid = ValidUtf8Prefix(text, bytes);
  std::string shadow;
  if (valid < bytes) shadow = ShadowOf(text, bytes, valid, &result_.invalid_bytes);
  const char* seen = valid < bytes ? shadow.data() : text;
  return impl_.pre_tokenizer->Split(
      seen, bytes, pattern_scratch_, [&](const char* piece, size_t length) {
        result_.dropped_bytes +=
            impl_.bpe->Encode(text + (piece - seen), length, merge_scratch_, &result_.ids);
      });
}

// F23. The rule is told as a sentence, and an explicit request that doubles the token is granted with a warning.
EncodeResult Tokenizer::Encoding::Finish() {
  const int32_t bos = impl_.bos;
  const std::string name = bos >= 0 ? absl::StrCat(bos, " '", impl_.pieces[bos], "'") : "";
  bool add = false;
  std::string why = impl_.wants_bos_why;
  if (options_.begin == BeginToken::kNever) {
    why = "by request";
  } else if (options_.begin == BeginToken::kAlways) {
    add = bos >= 0;
    why = add ? "by request" : "requested, but the file names none";
  } else if (starts_with_bos_) {
    why = absl::StrCat("the prompt starts with ", name, " already");
  } else {
    add = impl_.wants_bos;
  }
  if (add && starts_with_bos_) {
    result_.warnings.push_back(absl::StrCat(
        "two begin tokens (", name, "): one by request, one that the prompt brings itself"));
  }
  result_.rule = add ? absl::StrCat("begin token ", name, " added: ", why)
                     : absl::StrCat("no begin token added: ", why);
  if (add) result_.ids.insert(result_.ids.begin(), bos);
  return std::move(result_);
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(const VocabData& vocab) {
  auto impl = std::make_unique<Impl>();
  KVRING_RETURN_IF_ERROR(impl->Init(vocab));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

absl::StatusOr<EncodeResult> Tokenizer::Encode(const std::string& text,
                                               const EncodeOptions& options) const {
  Encoding encoding(*impl_, options);
  KVRING_RETURN_IF_ERROR(encoding.AddPlain(text));
  return encoding.Finish();
}

absl::StatusOr<EncodeResult> Tokenizer::EncodeSegments(const std::vector<Segment>& segments,
                                                       const EncodeOptions& options) const {
  Encoding encoding(*impl_, options);
  for (const Segment& segment : JoinPlain(segments, *impl_->specials)) {
    if (segment.is_control) {
      encoding.AddControl(impl_->specials->Lookup(segment.text));
    } else {
      KVRING_RETURN_IF_ERROR(encoding.AddPlain(segment.text));
    }
  }
  return encoding.Finish();
}

absl::StatusOr<std::string> Tokenizer::Decode(const std::vector<int32_t>& ids,
                                              bool keep_special) const {
  std::string text;
  for (const int32_t id : ids) {
    if (!Contains(id)) {
      return absl::OutOfRangeError(
          absl::StrCat("token id ", id, " is outside the vocabulary of ", vocab_size()));
    }
    if (keep_special || !IsControl(id)) text += Piece(id);
  }
  return text;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->pieces.size()); }
const std::string& Tokenizer::Piece(int32_t id) const { return impl_->pieces[id]; }
bool Tokenizer::IsControl(int32_t id) const { return impl_->is_control[id]; }
int32_t Tokenizer::FindSpecial(const std::string& spelling) const {
  return impl_->specials->Lookup(spelling);
}
int32_t Tokenizer::bos() const { return impl_->bos; }
int32_t Tokenizer::eos() const { return impl_->eos; }
int32_t Tokenizer::eot() const { return impl_->eot; }
bool Tokenizer::IsEndOfGeneration(int32_t id) const {
  return std::binary_search(impl_->ends.begin(), impl_->ends.end(), id);
}
const std::vector<int32_t>& Tokenizer::EndOfGeneration() const { return impl_->ends; }

}  // namespace kvring
