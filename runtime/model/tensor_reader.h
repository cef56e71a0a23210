// SPDX-License-Identifier: Apache-2.0
// Tensors of a file as fp32 numbers, read in pieces so that no second copy of a tensor's bytes is ever held.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/model/gguf.h"

namespace kvring {

// The named tensors one after the other, row by row. Uses Threads() threads. Refuses, naming file and tensor: one that is
// missing, a file cut short since it was opened, numbers that are not finite (with their row).
absl::StatusOr<std::vector<float>> ReadFloats(const GgufFile& file,
                                              const std::vector<std::string>& names);

// The checks of ReadFloats without the numbers.
absl::Status CheckFloats(const GgufFile& file, const std::string& name);

}  // namespace kvring
