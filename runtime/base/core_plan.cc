// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/core_plan.h"

#include <sched.h>

#include <algorithm>

namespace kvring {
namespace {

bool Overlap(const Cores& a, const Cores& b) {
  return std::ranges::any_of(a, [&](int core) { return std::ranges::binary_search(b, core); });
}

}  // namespace

absl::StatusOr<Pinning> ParsePinning(const std::string& name) {
  if (name == "auto") return Pinning::kAuto;
  if (name == "none") return Pinning::kNone;
  if (name == "cores") return Pinning::kCores;
  return absl::InvalidArgumentError(
      absl::StrCat("--pin '", name, "' is unknown: use auto, none or cores"));
}

Cores PartOfCores(const Cores& cores, int part, int parts) {
  const int n = static_cast<int>(cores.size());
  const int size = n / parts, more = n % parts;
  const int begin = part * size + std::min(part, more);
  return Cores(cores.begin() + begin, cores.begin() + begin + size + (part < more ? 1 : 0));
}

Cores ShareOfHost(std::span<const Cores> masks, int self) {
  const Cores& mine = masks[self];
  int before = 0, sharers = 0;
  for (int other = 0; other < static_cast<int>(masks.size()); ++other) {
    if (masks[other] == mine) {
      before += other < self ? 1 : 0;
      ++sharers;
    } else if (Overlap(masks[other], mine)) {
      return {};
    }
  }
  if (sharers > static_cast<int>(mine.size())) return {};
  return PartOfCores(mine, before, sharers);
}

absl::StatusOr<ThreadPlan> PlanThreads(const Cores& share, int ranks, int asked, Pinning pinning) {
  const int cores = static_cast<int>(share.size());
  ThreadPlan plan;
  plan.threads = asked > 0 ? asked : std::max(1, cores / ranks);
  plan.crowded = int64_t{plan.threads} * ranks > cores;
  if (cores == 0 && pinning == Pinning::kCores) {
    return absl::InvalidArgumentError(
        "--pin cores: this host has fewer cores than processes of the job, or their masks cross: "
        "use --pin auto");
  }
  if (plan.crowded && pinning == Pinning::kCores) {
    return absl::InvalidArgumentError(
        absl::StrCat("--pin cores: ", ranks, ranks == 1 ? " rank with " : " ranks with ",
                     plan.threads, plan.threads == 1 ? " thread" : " threads", " on ", cores,
                     " cores of this process: use fewer (-t), or --pin auto"));
  }
  if (plan.crowded || pinning == Pinning::kNone) return plan;
  for (int rank = 0; rank < ranks; ++rank) plan.cores.push_back(PartOfCores(share, rank, ranks));
  return plan;
}

Cores AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  Cores cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

}  // namespace kvring
