// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a subcommand come from: threads of this process, or the mpirun that started it. Rank 0 alone leads and
// prints; the others follow its plans.
#pragma once

#include <memory>
#include <string>

#include "dist/communicator.h"
#include "dist/mpi_launch.h"
#include "runtime/base/core_plan.h"
#include "runtime/engine/rank_group.h"

namespace kvring {

struct JobFlags {
  int ranks = 1;
  bool mpi = false;
};

// This process's part in a job, before weights are loaded.
class Job {
 public:
  // Under a launcher: joins its job (`ranks`, when given, must agree). Else one process with `ranks` threads to come.
  static absl::StatusOr<std::unique_ptr<Job>> Join(const JobFlags& flags, bool ranks_given);

  bool leads() const { return rank_ == 0; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  int ranks_on_host() const { return ranks_on_host_; }
  bool processes() const { return processes_; }  // ranks are processes, not threads
  // Cores of this process: what the launcher or the system allows, divided with the other processes of the host. Empty: they
  // are fewer than the processes.
  const Cores& cores() const { return cores_; }
  const char* kind() const { return processes_ ? "processes (mpirun)" : "threads"; }

  // Every rank says how its preparation went; the first failure by rank becomes the answer on all. The message is given on
  // rank 0 alone, so that it is printed once.
  absl::Status Agree(const absl::Status& mine, absl::Duration timeout);

  // Rank 0's value, on every rank: what one rank measured or chose for all.
  absl::StatusOr<int64_t> FromLeader(int64_t value, absl::Duration timeout);

  // The least of all ranks' values, on every rank: what the poorest can do.
  absl::StatusOr<int64_t> Least(int64_t value, absl::Duration timeout);

  // Threads of each rank of this process; all ranks get the same answer or none.
  absl::StatusOr<ThreadPlan> PlanRanks(int asked, Pinning pinning, absl::Duration timeout);

  // Rank 0: the group to lead. Call once, after Agree.
  absl::StatusOr<std::unique_ptr<RankGroup>> Lead(const ThreadPlan& threads,
                                                  const ExecutorOptions& options);
  // The others: follow until the leader stops.
  absl::Status Follow(const ThreadPlan& threads, const ExecutorOptions& options);

 private:
  Job() = default;
  absl::Status DivideCores();
  std::unique_ptr<Communicator> comm_;  // null: threads
  bool processes_ = false;
  int rank_ = 0, size_ = 1, ranks_on_host_ = 1;
  Cores cores_;
};

// Prints a failure as main would, now, and returns it without its message: for ranks that are processes, where the launcher
// ends everyone as soon as one rank has left.
absl::Status SayNow(const absl::Status& status);

// Ctrl-C ends this process at once, all its rank threads with it, with exit code 130 and the terminal in order.
void EndOnInterrupt();

}  // namespace kvring
