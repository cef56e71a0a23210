// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/run_facts.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "benchmarks/commit.h"
#include "kernels/simd_target.h"

namespace kvring {
namespace {

// What stands behind "key<blanks>:" on the first such line of a file; empty when there is none.
std::string Field(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    if (line.find_first_not_of(" \t", key.size()) != colon) continue;
    const size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

std::string FirstLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int64_t Kilobytes(const char* path, const std::string& key) {
  return std::strtoll(Field(path, key).c_str(), nullptr, 10) * 1024;
}

std::string Now() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

std::string LoadOfLastMinute() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? std::to_string(load).substr(0, 5) : "unknown";
}

}  // namespace

std::string SourceCommit() { return KVRING_COMMIT; }

std::string CpuName() {
  const char* const info = "/proc/cpuinfo";
  return Field(info, "model name") + " (family " + Field(info, "cpu family") + ", model " +
         Field(info, "model") + ", stepping " + Field(info, "stepping") + ")";
}

int CpuCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

std::vector<std::pair<std::string, std::string>> RunFacts() {
  return {{"commit", SourceCommit()},
          {"date", Now()},
          {"cpu", CpuName()},
          {"cores", std::to_string(CpuCores())},
          {"simd", SimdTarget()},
          {"l3_bytes", std::to_string(sysconf(_SC_LEVEL3_CACHE_SIZE))},
          {"memory_bytes", std::to_string(Kilobytes("/proc/meminfo", "MemTotal"))},
          {"huge_pages", FirstLine("/sys/kernel/mm/transparent_hugepage/enabled")},
          {"load", LoadOfLastMinute()}};
}

int64_t SwappedBytes() { return Kilobytes("/proc/self/status", "VmSwap"); }

}  // namespace kvring
