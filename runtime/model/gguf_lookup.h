// SPDX-License-Identifier: Apache-2.0
// Look-ups with a default or a range, for code that derives a shape from a file. Messages name file and key.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/status.h"
#include "runtime/model/gguf.h"

namespace kvring {

struct IntRange {
  int64_t least, most;
};

// INVALID_ARGUMENT outside the range. An array counts as its one value when all its elements agree (per-layer numbers).
absl::StatusOr<int64_t> RequireInt(const GgufFile& file, const std::string& key, IntRange range);
absl::StatusOr<int64_t> IntOr(const GgufFile& file, const std::string& key, int64_t absent,
                              IntRange range);

// Finite numbers only. A bool counts as 0 or 1.
absl::StatusOr<double> FloatOr(const GgufFile& file, const std::string& key, double absent);
absl::StatusOr<std::string> StringOr(const GgufFile& file, const std::string& key,
                                     const std::string& absent);

}  // namespace kvring
