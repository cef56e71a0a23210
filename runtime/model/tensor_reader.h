// SPDX-License-Identifier: Apache-2.0
// Tensors of a file as fp32 numbers, read in pieces so that no second copy of a tensor's bytes is ever held.
#pragma once

#include <string>
#include <vector>

#include "kernels/block_linear.h"
#include "runtime/base/status.h"
#include "runtime/model/gguf.h"

namespace kvring {

// The named tensors one after the other, row by row. Uses Threads() threads. Refuses, naming file and tensor: one that is
// missing, a file cut short since it was opened, numbers that are not finite (with their row).
absl::StatusOr<std::vector<float>> ReadFloats(const GgufFile& file,
                                              const std::vector<std::string>& names);

// One tensor as codes and scales, the file's own where its format has them; F32, F16 and BF16 rounded to int8 under one
// scale per 32 numbers. The same refusals.
absl::StatusOr<BlockWeights> ReadBlocks(const GgufFile& file, const std::string& name);

// The checks of ReadFloats without the numbers.
absl::Status CheckFloats(const GgufFile& file, const std::string& name);

}  // namespace kvring
