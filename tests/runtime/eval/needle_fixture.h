// SPDX-License-Identifier: Apache-2.0
// A tiny model, its tokenizer and a text of the repository as ids, made once.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "runtime/model/vocab_reader.h"
#include "runtime/text/tokenizer.h"
#include "tests/support/model_run.h"

namespace kvring {

struct NeedleSubject {
  TestModel model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<int32_t> ids;
};

inline const NeedleSubject& Subject() {
  static const NeedleSubject* const subject = [] {
    auto* s = new NeedleSubject;
    TinyModelOptions options;
    options.hidden = 128;
    options.query_heads = 4;
    options.kv_heads = 2;
    options.head_dim = 32;
    options.ffn = 192;
    s->model = *MakeTestModel(options, LinearMath::kF32);
    s->tokenizer = *Tokenizer::Create(*ReadVocab(*s->model.file));
    std::ifstream file("launch/texts/great-expectations-08.txt", std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    s->ids = s->tokenizer->Encode(text, {BeginToken::kNever, false})->ids;
    return s;
  }();
  return *subject;
}

}  // namespace kvring
