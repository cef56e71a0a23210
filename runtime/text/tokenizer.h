// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back: byte-level BPE with the vocabulary, the merges and the pre-tokenizer that a model file names.
//
// Rules (runtime/text/README.md has them in full):
// - F09: plain text never becomes a control token; only a control Segment (a template's) or parse_special does that.
// - F17: bytes that are not UTF-8 are kept as byte tokens, so Decode(Encode(x)) == x wherever the vocabulary has the byte.
//   A byte that the vocabulary lacks is left out and counted in dropped_bytes.
// - F23: at most one begin token, in front; never an end token. EncodeResult::rule says why.
//
// Immutable and thread-safe after Create.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/vocab_data.h"

namespace kvring {

// A stretch of a prompt. A control segment is exactly one spelling of a template ("<|im_start|>"): it becomes that token, or
// plain text when the vocabulary has no such token. Everything else, documents above all, is plain.
struct Segment {
  std::string text;
  bool is_control = false;
};

enum class BeginToken {
  kModelRule,  // the file's add_bos_token, else the family's habit; not repeated when a template brings its own
  kNever,
  kAlways,  // doubles a template's own begin token, with a warning
};

struct EncodeOptions {
  BeginToken begin = BeginToken::kModelRule;
  bool parse_special = false;  // spellings of control tokens in plain text become those tokens
};

struct EncodeResult {
  std::vector<int32_t> ids;
  int64_t dropped_bytes = 0;  // bytes that the vocabulary cannot express
  int64_t invalid_bytes = 0;  // bytes outside well-formed UTF-8; kept unless also dropped
  std::string rule;           // which begin-token rule was used, as a sentence
  std::vector<std::string> warnings;
};

class Tokenizer {
 public:
  // UNIMPLEMENTED: a vocabulary that is not byte-level BPE, or an unknown pre-tokenizer (the message lists the known ones).
  // INVALID_ARGUMENT: a vocabulary that contradicts itself.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const VocabData& vocab);
  ~Tokenizer();

  // INVALID_ARGUMENT beyond 2^31-1 bytes, RESOURCE_EXHAUSTED when pattern matching hits its limits (names the byte).
  absl::StatusOr<EncodeResult> Encode(const std::string& text,
                                      const EncodeOptions& options = {}) const;
  // One prompt of several parts. Plain neighbours are joined first, so a border inside plain text leaves no trace in the ids.
  absl::StatusOr<EncodeResult> EncodeSegments(const std::vector<Segment>& segments,
                                              const EncodeOptions& options = {}) const;

  // The exact bytes, which need not be UTF-8 (StreamDecoder gives printable text). Control tokens are left out unless
  // keep_special. OUT_OF_RANGE for an id outside the vocabulary.
  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids,
                                     bool keep_special = false) const;

  int32_t vocab_size() const;
  bool Contains(int32_t id) const { return id >= 0 && id < vocab_size(); }
  // The bytes of one token; the spelling of a control token. `id` must be contained.
  const std::string& Piece(int32_t id) const;
  // True for tokens that only templates may produce. `id` must be contained.
  bool IsControl(int32_t id) const;
  // The control or user-defined token spelled so, or -1.
  int32_t FindSpecial(const std::string& spelling) const;

  int32_t bos() const;  // -1 when the model has none; so are the next two
  int32_t eos() const;
  int32_t eot() const;
  bool IsEndOfGeneration(int32_t id) const;
  const std::vector<int32_t>& EndOfGeneration() const;  // ascending

 private:
  struct Impl;
  class Encoding;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvring
