// SPDX-License-Identifier: Apache-2.0
// The tokenizer's data out of a model file (keys tokenizer.ggml.* and tokenizer.chat_template).
#pragma once

#include "runtime/base/status.h"
#include "runtime/model/gguf.h"
#include "runtime/text/vocab_data.h"

namespace kvring {

// Refuses, naming file and key: missing tokens, lists of the wrong kind or length, token types that do not exist, special
// ids outside the vocabulary. What a tokenizer family makes of the data is not judged here.
absl::StatusOr<VocabData> ReadVocab(const GgufFile& file);

}  // namespace kvring
