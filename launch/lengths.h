// SPDX-License-Identifier: Apache-2.0
// "64K", "1M", "10M": lengths and sizes as people type them. K, M, G are powers of two, for bytes and for tokens.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/status.h"

namespace kvring {

absl::StatusOr<int64_t> ParseLength(const std::string& text);

}  // namespace kvring
