// SPDX-License-Identifier: Apache-2.0
// Random models of the Llama family as GGUF, for tests that need no network: the "T" of the field-fault tests. The same
// options give the same bytes on every machine: numbers come from a hash of (seed, tensor's name, index), so changing
// one tensor leaves the others as they were. (Only llama3's factors go through pow(), whose last bit is the C library's.)
//
// Weights are scaled to fan-in, so that normed activations give numbers near 1, attention chooses among keys, and the logits
// of a step have a standard deviation near 3: neither flat nor decided by one token.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/status.h"
#include "runtime/model/gguf_writer.h"

namespace kvring {

enum class TinyOutput {
  kTied,  // no output.weight
  kCopy,  // output.weight is the embedding again: must give the logits of kTied (F20)
  kOwn,   // numbers of its own
};

struct TinyModelOptions {
  uint64_t seed = 1;
  std::string architecture = "llama";  // or "qwen2": adds random biases of q, k and v
  int layers = 2;
  int hidden = 512;
  int query_heads = 8;
  int kv_heads = 2;
  int head_dim = 64;
  int value_dim = 0;  // 0: head_dim
  int ffn = 1024;
  int vocab = 512;
  int64_t trained_context = 8192;   // -1: the file does not say
  std::string weight_type = "F32";  // of matrices: F32, F16, Q8_0
  TinyOutput output = TinyOutput::kTied;

  double rope_base = 10000.0;
  std::string rope_scaling = "none";  // "linear", "yarn", "llama3" (as a factor tensor)
  double rope_factor = 32.0;
  double rope_low = 1.0, rope_high = 4.0;  // llama3's bands
  int64_t rope_original_context = 8192;

  // F22. Every key gets this bias in 3 channels of each head.
  float key_bias = 0.0f;
  // F22. sink_scale > 0: token sink_token has keys of about sink_scale times the norm of other tokens' keys, in every
  // layer. (Channel 0 of the residual stream belongs to it alone.)
  float sink_scale = 0.0f;
  int32_t sink_token = 1;
};

// INVALID_ARGUMENT names the option that cannot be.
absl::StatusOr<GgufWriter> MakeTinyModel(const TinyModelOptions& options);

}  // namespace kvring
