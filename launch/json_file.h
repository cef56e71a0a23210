// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "runtime/base/status.h"

namespace kvring {

// Writes text and a newline to a file, or to standard output for "-". The message names the file.
absl::Status WriteTextFile(const std::string& path, const std::string& text);

}  // namespace kvring
