// SPDX-License-Identifier: Apache-2.0
// The shape of a model, derived from its file and checked against the tensors that are really there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "kernels/rope.h"
#include "runtime/base/status.h"

namespace kvring {

class GgufFile;

struct ModelConfig {
  std::string architecture;  // "llama"
  std::string name;
  int layers = 0;
  int hidden = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int dk = 0, dv = 0;  // key and value head_dim
  int ffn = 0;
  int vocab = 0;
  float rms_epsilon = 1e-5f;
  int64_t trained_context = 0;  // 0: the file does not say
  bool tied_output = false;     // the output head is the embedding
  std::vector<RopeTable> rope;  // [layers]
  std::string rope_scaling;     // "none", "linear", "yarn", "llama3 factors", as found
  std::vector<std::string> warnings;

  KvShape kv_shape(int block_tokens) const {
    return {layers, query_heads, kv_heads, dk, dv, block_tokens};
  }
};

// Refuses, with a message that names the key or tensor: an unknown architecture or attention kind, a missing key, a shape
// that does not match the tensors, a scaling that cannot be applied (F10, F13, F20).
absl::StatusOr<ModelConfig> DeriveModelConfig(const GgufFile& file);

}  // namespace kvring
