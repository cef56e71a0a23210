// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/rank_report.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace kvring {
namespace {

// The number behind `key` in a file of "Key: number kB" lines, in bytes; -1 when absent.
int64_t KilobyteField(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    int64_t value = 0;
    if (word == key && file >> value) return value * 1024;
  }
  return -1;
}

// A file that holds one number; -1 when it is absent or says "max".
int64_t NumberIn(const char* path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : -1;
}

}  // namespace

int64_t ProcessRssBytes() {
  return std::max<int64_t>(0, KilobyteField("/proc/self/status", "VmRSS:"));
}

int64_t ProcessPeakRssBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

int64_t AvailableMemoryBytes() {
  int64_t available = KilobyteField("/proc/meminfo", "MemAvailable:");
  if (available < 0) available = std::numeric_limits<int64_t>::max();
  const int64_t limit = NumberIn("/sys/fs/cgroup/memory.max"),
                used = NumberIn("/sys/fs/cgroup/memory.current");
  if (limit > 0 && used >= 0) available = std::min(available, std::max<int64_t>(0, limit - used));
  return available;
}

}  // namespace kvring
