// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace kvring {

// One family: how it cuts words, and two habits of it.
struct PreTokenizerRow {
  const char* name;
  std::vector<const char*> patterns;
  bool adds_bos;
  bool whole_words;
};

namespace {

// White space is written out: PCRE2's \s also takes U+180E, which Unicode's White_Space has not held since version 6.3, and
// vocabularies were made with White_Space.
#define SPACE                                                                                      \
  "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{" \
  "3000}"
// A run of white space less the last character before a word; a run at the end whole.
#define SPACES_BEFORE "[" SPACE "]+(?![^" SPACE "])"

constexpr char kEachNumeral[] = "\\p{N}";

// GPT-2 (Radford et al. 2019): English clitics, then words, numbers and the rest, each with the space before it.
constexpr char kGpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|" SPACES_BEFORE;

// Llama 3 and Qwen 2: clitics in both cases (written out, since caseless matching would add U+017F), words with any one
// character before them, lines' ends apart. They differ in how many numerals go together.
#define LINEWISE(NUMERALS)                                                                        \
  "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" NUMERALS \
  "| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n]*|[" SPACE "]*[\\r\\n]+|" SPACES_BEFORE "|[" SPACE "]+"
constexpr char kLlama3[] = LINEWISE("\\p{N}{1,3}");
constexpr char kQwen2[] = LINEWISE("\\p{N}");

const std::vector<PreTokenizerRow>& Table() {
  static const std::vector<PreTokenizerRow> rows = {
      {"smollm", {kEachNumeral, kGpt2}, false, false},
      {"gpt-2", {kGpt2}, false, false},
      {"llama-bpe", {kLlama3}, true, true},
      {"qwen2", {kQwen2}, false, false},
  };
  return rows;
}

const PreTokenizerRow* FindRow(const std::string& name) {
  for (const PreTokenizerRow& row : Table()) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

std::string KnownNames() {
  std::string names;
  for (const PreTokenizerRow& row : Table())
    absl::StrAppend(&names, names.empty() ? "" : ", ", row.name);
  return names;
}

std::string Pcre2Message(int code) {
  PCRE2_UCHAR text[256];  // PCRE2's own advice for the size
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
using Code = std::unique_ptr<pcre2_code, FreeCode>;

absl::StatusOr<Code> Compile(const char* pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
  if (code == nullptr) {
    return absl::InternalError(
        absl::StrCat("pre-tokenizer pattern, character ", offset, ": ", Pcre2Message(error)));
  }
  // Where machine code may not be made (no JIT, hardened kernels), the interpreter does the same work more slowly.
  (void)pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

constexpr size_t kJitStackStart = 32 << 10;
constexpr size_t kJitStackMost = 8 << 20;
// Every pattern backtracks over one run at most twice; the rest is room. Only a run near 2^30 bytes can meet the cap.
constexpr uint64_t kMatchLimitBase = 1'000'000;
constexpr uint64_t kMatchLimitPerByte = 4;

}  // namespace

struct PreTokenizer::Scratch::Impl {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr);

  Impl() {
    if (context != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Impl() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  bool ready() const { return data != nullptr && context != nullptr; }
  void LimitFor(size_t bytes) {
    const uint64_t limit = kMatchLimitBase + kMatchLimitPerByte * bytes;
    pcre2_set_match_limit(context, static_cast<uint32_t>(std::min<uint64_t>(limit, UINT32_MAX)));
  }
};

PreTokenizer::Scratch::Scratch() : impl_(std::make_unique<Impl>()) {}
PreTokenizer::Scratch::~Scratch() = default;

struct PreTokenizer::Impl {
  const PreTokenizerRow* row = nullptr;
  std::vector<Code> codes;

  // Where the next match in piece[from, bytes) lies; begin == bytes when there is none.
  struct Range {
    size_t begin, end;
  };
  absl::StatusOr<Range> NextMatch(const Code& code, const char* piece, size_t bytes, size_t from,
                                  Scratch::Impl& scratch) const;
  absl::Status SplitLevel(size_t level, const char* piece, size_t bytes, Scratch::Impl& scratch,
                          const Emit& emit) const;
};

absl::StatusOr<PreTokenizer::Impl::Range> PreTokenizer::Impl::NextMatch(
    const Code& code, const char* piece, size_t bytes, size_t from, Scratch::Impl& scratch) const {
  const auto match = [&](uint32_t options) {
    return pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(piece), bytes, from,
                       PCRE2_NO_UTF_CHECK | options, scratch.data, scratch.context);
  };
  int found = match(0);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(PCRE2_NO_JIT);
  if (found == PCRE2_ERROR_NOMATCH) return Range{bytes, bytes};
  if (found < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("cutting text into words, byte ", from,
                                                     " of a stretch of ", bytes, ": ",
                                                     Pcre2Message(found)));
  }
  const PCRE2_SIZE* at = pcre2_get_ovector_pointer(scratch.data);
  return Range{at[0], at[1]};
}

absl::Status PreTokenizer::Impl::SplitLevel(size_t level, const char* piece, size_t bytes,
                                            Scratch::Impl& scratch, const Emit& emit) const {
  if (bytes == 0) return absl::OkStatus();
  if (level == codes.size()) {
    emit(piece, bytes);
    return absl::OkStatus();
  }
  for (size_t at = 0; at < bytes;) {
    KVRING_ASSIGN_OR_RETURN(const Range next, NextMatch(codes[level], piece, bytes, at, scratch));
    KVRING_RETURN_IF_ERROR(SplitLevel(level + 1, piece + at, next.begin - at, scratch, emit));
    KVRING_RETURN_IF_ERROR(
        SplitLevel(level + 1, piece + next.begin, next.end - next.begin, scratch, emit));
    at = next.end;  // beyond `at`: no pattern of the table matches the empty text
  }
  return absl::OkStatus();
}

PreTokenizer::PreTokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PreTokenizer::~PreTokenizer() = default;

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(const std::string& name) {
  auto impl = std::make_unique<Impl>();
  impl->row = FindRow(name);
  if (impl->row == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(name.empty() ? "the file names no pre-tokenizer (tokenizer.ggml.pre)"
                                  : absl::StrCat("unknown pre-tokenizer '", name, "'"),
                     "; known: ", KnownNames()));
  }
  for (const char* pattern : impl->row->patterns) {
    KVRING_ASSIGN_OR_RETURN(Code code, Compile(pattern));
    impl->codes.push_back(std::move(code));
  }
  return std::unique_ptr<PreTokenizer>(new PreTokenizer(std::move(impl)));
}

absl::Status PreTokenizer::Split(const char* text, size_t bytes, Scratch& scratch,
                                 const Emit& emit) const {
  if (!scratch.impl_->ready())
    return absl::ResourceExhaustedError("no memory for pattern matching");
  scratch.impl_->LimitFor(bytes);
  return impl_->SplitLevel(0, text, bytes, *scratch.impl_, emit);
}

bool PreTokenizer::adds_bos() const { return impl_->row->adds_bos; }
bool PreTokenizer::whole_words() const { return impl_->row->whole_words; }

}  // namespace kvring
