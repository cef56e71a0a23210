// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/special_tokens.h"

#include <algorithm>
#include <array>
#include <functional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "runtime/text/chat_families.h"

namespace kvring {
namespace {

// Controls that end a turn or a text in the families we know. Names alone decide only among controls.
constexpr const char* kEndNames[] = {
    "<|endoftext|>", "<|im_end|>",    "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",
    "<|end|>",       "<end_of_turn>", "</s>",       "<eos>"};

template <typename List>
bool Contains(const List& list, const std::string& text) {
  return std::find(std::begin(list), std::end(list), text) != std::end(list);
}

}  // namespace

std::vector<bool> ControlTokens(const VocabData& vocab) {
  std::vector<bool> control(vocab.tokens.size(), false);
  for (size_t id = 0; id < control.size(); ++id) {
    control[id] = vocab.types[id] == TokenType::kControl ||
                  vocab.types[id] == TokenType::kUnknown || Contains(ChatMarks(), vocab.tokens[id]);
  }
  // An ordinary token in such a role stays ordinary: small vocabularies without controls name a byte as their end token,
  // and that byte must stay writable.
  for (const int32_t id : {vocab.bos, vocab.eos, vocab.eot}) {
    if (id >= 0 && vocab.types[id] != TokenType::kNormal && vocab.types[id] != TokenType::kByte)
      control[id] = true;
  }
  return control;
}

std::vector<int32_t> EndOfGenerationTokens(const VocabData& vocab,
                                           const std::vector<bool>& is_control) {
  std::vector<int32_t> ends;
  for (size_t id = 0; id < is_control.size(); ++id) {
    const bool is_role =
        static_cast<int32_t>(id) == vocab.eos || static_cast<int32_t>(id) == vocab.eot;
    if (is_role || (is_control[id] && Contains(kEndNames, vocab.tokens[id])))
      ends.push_back(static_cast<int32_t>(id));
  }
  return ends;
}

struct SpellingMatcher::Impl {
  absl::flat_hash_map<std::string, int32_t> id_of;
  std::array<std::vector<size_t>, 256>
      lengths;  // by first byte: lengths of the spellings, longest first
};

SpellingMatcher::SpellingMatcher(const VocabData& vocab, const std::vector<int32_t>& ids)
    : impl_(std::make_unique<Impl>()) {
  for (const int32_t id : ids) {
    const std::string& spelling = vocab.tokens[id];
    if (spelling.empty()) continue;
    impl_->id_of.try_emplace(spelling, id);
    std::vector<size_t>& lengths = impl_->lengths[static_cast<uint8_t>(spelling[0])];
    if (std::find(lengths.begin(), lengths.end(), spelling.size()) == lengths.end())
      lengths.push_back(spelling.size());
  }
  for (auto& lengths : impl_->lengths) std::sort(lengths.begin(), lengths.end(), std::greater<>());
}
SpellingMatcher::~SpellingMatcher() = default;

SpellingMatcher::Hit SpellingMatcher::Find(const char* text, size_t bytes, size_t from) const {
  if (impl_->id_of.empty()) return {};
  for (size_t at = from; at < bytes; ++at) {
    for (const size_t length : impl_->lengths[static_cast<uint8_t>(text[at])]) {
      if (length > bytes - at) continue;
      const auto it = impl_->id_of.find(absl::string_view(text + at, length));
      if (it != impl_->id_of.end()) return {at, length, it->second};
    }
  }
  return {};
}

int32_t SpellingMatcher::Lookup(const std::string& spelling) const {
  const auto it = impl_->id_of.find(spelling);
  return it == impl_->id_of.end() ? -1 : it->second;
}

}  // namespace kvring
