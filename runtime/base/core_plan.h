// SPDX-License-Identifier: Apache-2.0
// Which cores the threads of a rank run on. Pure arithmetic on masks but for AllowedCores; kernels/parallel.h binds.
//
// Cores are the operating system's numbers, ascending. What a process may use is what its mask says, so a cgroup, taskset or
// a launcher's binding is respected. Processes of a host with the same mask share it: each takes a part of its own.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace kvring {

using Cores = std::vector<int>;

// Threads of a rank are bound to the rank's cores together, not one by one: where others run too, the system may still move
// them there. kAuto: when there is a core for each thread. kCores: the same, and refused when there is none.
enum class Pinning { kAuto, kNone, kCores };
absl::StatusOr<Pinning> ParsePinning(
    const std::string& name);  // INVALID_ARGUMENT names the choices

// The `part`-th of `parts` runs of neighbouring cores, sizes as equal as possible, the first ones larger.
Cores PartOfCores(const Cores& cores, int part, int parts);

// Cores of process `self` of a host, given the masks of all its processes. Those with the same mask divide it in their order;
// fewer cores than processes: none. Masks that overlap and differ are left as they are: none.
Cores ShareOfHost(std::span<const Cores> masks, int self);

struct ThreadPlan {
  int threads = 1;       // per rank
  bool crowded = false;  // more threads than cores: who waits must sleep
  std::vector<Cores>
      cores;  // by rank of this process, at least a core a thread; empty: nothing is bound
};

// share: this process's cores, empty when there are not enough for the processes of the host. asked: threads per rank, 0: as
// many as there are cores for, at least 1. INVALID_ARGUMENT when kCores asks for more than there is.
absl::StatusOr<ThreadPlan> PlanThreads(const Cores& share, int ranks, int asked, Pinning pinning);

Cores AllowedCores();  // of the calling thread

}  // namespace kvring
