// SPDX-License-Identifier: Apache-2.0
#include "launch/json_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace kvring {

absl::Status WriteTextFile(const std::string& path, const std::string& text) {
  std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "wb");
  if (file == nullptr)
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size() &&
                       std::fputc('\n', file) != EOF && std::fflush(file) == 0;
  const bool closed = path == "-" || std::fclose(file) == 0;
  if (!written || !closed)
    return absl::DataLossError(
        absl::StrCat("cannot write all of ", path, ": ", std::strerror(errno)));
  return absl::OkStatus();
}

}  // namespace kvring
