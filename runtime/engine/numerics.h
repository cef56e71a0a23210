// SPDX-License-Identifier: Apache-2.0
// The arithmetic of a job: one id for everything that may change bits. Rank 0 chooses it, every plan carries it, every
// rank checks it, results name it.
#pragma once

#include <string>

#include "kernels/linear.h"
#include "kernels/packed_queries.h"
#include "runtime/base/status.h"
#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"

namespace kvring {

// "auto" measures (ChooseLinearMath with the blocks of this file); "f32", "bf16", "int8", "blocks" are taken as they are.
absl::StatusOr<LinearMath> ParseMath(const std::string& text, const GgufFile& file,
                                     const ModelConfig& config);

// math: "tile" or "int8". rounding: "" for all, else a list of query, bias, weights: those alone are rounded, in plain loops.
absl::StatusOr<AttentionForm> ParseAttention(const std::string& math, const std::string& rounding);

// E.g. "bf16/q-f32/p-f32/exp2-poly/AVX3": linear products, form of the query and of the probabilities where packed keys are
// read, exp2, instruction set.
std::string NumericsId(LinearMath math, const AttentionForm& attention = {});

}  // namespace kvring
