// SPDX-License-Identifier: Apache-2.0
#include "tests/support/paths.h"

#include <cstdlib>
#include <filesystem>

namespace kvring {

std::string RealModelPath() {
  const char* named = std::getenv("KVRING_TEST_MODEL");
  std::string path = named != nullptr ? named : "";
  if (path.empty()) {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    const std::string base = cache != nullptr && *cache != '\0'
                                 ? cache
                                 : std::string(home != nullptr ? home : "") + "/.cache";
    path = base + "/kvring/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  }
  return std::filesystem::exists(path) ? path : "";
}

std::string TestDataPath(const std::string& name) {
  const char* named = std::getenv("KVRING_TEST_DATA");
  const std::string path = std::string(named != nullptr ? named : "../shared/data") + "/" + name;
  return std::filesystem::exists(path) ? path : "";
}

}  // namespace kvring
