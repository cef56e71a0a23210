// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/vocab_reader.h"

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/gguf_lookup.h"

namespace kvring {
namespace {

std::string Key(const char* suffix) { return absl::StrCat("tokenizer.ggml.", suffix); }

absl::Status Refuse(const GgufFile& file, const std::string& key, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": key '", key, "' ", what));
}

// An array whose elements all are T; empty when the key is absent.
template <typename T>
absl::StatusOr<std::vector<T>> ReadList(const GgufFile& file, const std::string& key,
                                        const char* kind) {
  std::vector<T> list;
  const GgufValue* value = file.FindValue(key);
  if (value == nullptr) return list;
  const auto* array = std::get_if<std::shared_ptr<GgufArray>>(value);
  if (array == nullptr) return Refuse(file, key, "is not an array");
  list.reserve((*array)->values.size());
  for (const GgufValue& element : (*array)->values) {
    const T* typed = std::get_if<T>(&element);
    if (typed == nullptr) return Refuse(file, key, absl::StrCat("is not an array of ", kind));
    list.push_back(*typed);
  }
  return list;
}

absl::Status CheckLength(const GgufFile& file, const std::string& key, size_t length,
                         size_t tokens) {
  if (length == 0 || length == tokens) return absl::OkStatus();
  return Refuse(file, key, absl::StrCat("has ", length, " elements for ", tokens, " tokens"));
}

absl::Status ReadTypes(const GgufFile& file, VocabData* vocab) {
  const std::string key = Key("token_type");
  KVRING_ASSIGN_OR_RETURN(const std::vector<int32_t> types,
                          ReadList<int32_t>(file, key, "32-bit integers"));
  KVRING_RETURN_IF_ERROR(CheckLength(file, key, types.size(), vocab->tokens.size()));
  vocab->types.assign(vocab->tokens.size(), TokenType::kNormal);
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] < static_cast<int32_t>(TokenType::kNormal) ||
        types[i] > static_cast<int32_t>(TokenType::kByte)) {
      return Refuse(file, key, absl::StrCat("is ", types[i], " for token ", i, "; 1 to 6 exist"));
    }
    vocab->types[i] = static_cast<TokenType>(types[i]);
  }
  return absl::OkStatus();
}

absl::Status ReadSpecialIds(const GgufFile& file, VocabData* vocab) {
  const std::pair<const char*, int32_t*> ids[] = {{"bos_token_id", &vocab->bos},
                                                  {"eos_token_id", &vocab->eos},
                                                  {"eot_token_id", &vocab->eot},
                                                  {"unknown_token_id", &vocab->unk},
                                                  {"padding_token_id", &vocab->pad}};
  const int64_t last = static_cast<int64_t>(vocab->tokens.size()) - 1;
  for (const auto& [suffix, id] : ids) {
    KVRING_ASSIGN_OR_RETURN(const int64_t value, IntOr(file, Key(suffix), -1, {0, last}));
    *id = static_cast<int32_t>(value);
  }
  return absl::OkStatus();
}

absl::Status ReadFlag(const GgufFile& file, const std::string& key, std::optional<bool>* flag) {
  if (file.FindValue(key) == nullptr) return absl::OkStatus();
  KVRING_ASSIGN_OR_RETURN(*flag, file.GetBool(key));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<VocabData> ReadVocab(const GgufFile& file) {
  VocabData vocab;
  KVRING_ASSIGN_OR_RETURN(vocab.model, file.GetString(Key("model")));
  KVRING_ASSIGN_OR_RETURN(vocab.pre, StringOr(file, Key("pre"), ""));
  KVRING_ASSIGN_OR_RETURN(vocab.tokens, ReadList<std::string>(file, Key("tokens"), "strings"));
  if (vocab.tokens.empty())
    return Refuse(file, Key("tokens"), "is missing or empty: the file has no vocabulary");
  KVRING_RETURN_IF_ERROR(ReadTypes(file, &vocab));
  KVRING_ASSIGN_OR_RETURN(vocab.merges, ReadList<std::string>(file, Key("merges"), "strings"));
  KVRING_ASSIGN_OR_RETURN(vocab.scores, ReadList<float>(file, Key("scores"), "32-bit floats"));
  KVRING_RETURN_IF_ERROR(
      CheckLength(file, Key("scores"), vocab.scores.size(), vocab.tokens.size()));
  KVRING_RETURN_IF_ERROR(ReadSpecialIds(file, &vocab));
  KVRING_RETURN_IF_ERROR(ReadFlag(file, Key("add_bos_token"), &vocab.add_bos));
  KVRING_RETURN_IF_ERROR(ReadFlag(file, Key("add_eos_token"), &vocab.add_eos));
  KVRING_ASSIGN_OR_RETURN(vocab.chat_template, StringOr(file, "tokenizer.chat_template", ""));
  return vocab;
}

}  // namespace kvring
