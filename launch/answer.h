// SPDX-License-Identifier: Apache-2.0
// One request through the engine, with what a person sees meanwhile: progress while the prompt is read, the answer as it
// streams, logits written and hashed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/run_result.h"
#include "runtime/engine/engine.h"
#include "runtime/text/tokenizer.h"

namespace kvring {

struct AnswerOptions {
  const std::vector<int32_t>* prompt = nullptr;
  int64_t new_tokens = 0;
  SamplingParams sampling;
  bool ignore_eos = false;
  std::string logits_file;  // empty: none
  bool stream = true;       // print the answer on standard output as it comes
  bool quiet = false;
  const Tokenizer* tokenizer = nullptr;
};

// Fills prompt_tokens, tokens, text, finish_reason, times, logits_hash, ranks and kv_bytes of `result`.
absl::Status Answer(Engine& engine, const AnswerOptions& options, RunResult& result);

}  // namespace kvring
