// SPDX-License-Identifier: Apache-2.0
// A transformer's loss in double, loop by loop, with one key (before RoPE) or value nudged: what finite differences are
// taken of. Shares nothing with the fast form but the model's file and its RoPE table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"

namespace kvring {

// One element of one side of one layer, [token][kv_head][channel] flattened, and what is added to it.
struct Nudge {
  int layer = 0;
  bool value = false;  // else the key
  int64_t element = 0;
  double delta = 0;
};

class DoubleModel {
 public:
  DoubleModel(const GgufFile& file, const ModelConfig& config) : file_(file), config_(config) {}

  // Mean cross-entropy over ids.size() - 1 predictions.
  double Loss(std::span<const int32_t> ids, const Nudge& nudge) const;
  // d Loss / d element by central differences: steps h and h/2 and Richardson's extrapolation; *error is their distance,
  // far above the error of the extrapolated value.
  double Gradient(std::span<const int32_t> ids, Nudge nudge, double* error) const;

 private:
  using Doubles = std::vector<double>;

  Doubles Tensor(const std::string& name) const;  // empty when the file has none
  // [rows][out] = x [rows][in] W^T, plus a bias where the file has one.
  Doubles Apply(const std::string& name, const Doubles& x, int64_t in) const;
  Doubles Norm(const std::string& name, const Doubles& x) const;
  void Rotate(int layer, int heads, Doubles& x) const;
  Doubles Attend(const Doubles& q, const Doubles& k, const Doubles& v) const;

  const GgufFile& file_;
  const ModelConfig& config_;
  mutable std::vector<std::pair<std::string, Doubles>> tensors_;
};

}  // namespace kvring
