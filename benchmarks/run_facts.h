// SPDX-License-Identifier: Apache-2.0
// What every result of a benchmark carries, so that it can be judged later: commit, CPU, date, machine.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvring {

// Commit of the sources that were built, "-dirty" behind it when they differed from it.
std::string SourceCommit();
// "model name" of /proc/cpuinfo; where it says little (virtual machines), family, model and stepping come behind it.
std::string CpuName();
int CpuCores();  // that this process may use
// Name and value, in a fixed order: commit, date (UTC), cpu, cores, simd, l3_bytes, memory_bytes, huge_pages (the system's
// setting), load (running and waiting processes of the last minute: above the cores, figures are of a busy machine).
std::vector<std::pair<std::string, std::string>> RunFacts();

int64_t SwappedBytes();  // of this process

}  // namespace kvring
