// SPDX-License-Identifier: Apache-2.0
// The ranks of a job as seen from rank 0: an executor here, and the others, be they threads of this process or
// processes under mpirun. A group of one rank is still a group.
#pragma once

#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "dist/communicator.h"
#include "runtime/base/core_plan.h"
#include "runtime/engine/executor.h"

namespace kvring {

class RankGroup {
 public:
  // `ranks` threads in this process, each with `threads_per_rank` threads for its work; they share the weights. cores: by
  // rank, what its threads are bound to; empty: nothing is bound. Rank 0 is the calling thread.
  static absl::StatusOr<std::unique_ptr<RankGroup>> Threads(int ranks, int threads_per_rank,
                                                            const ExecutorOptions& options,
                                                            std::span<const Cores> cores = {});
  // This process is rank 0 of `comm`; the others call Executor::Follow themselves.
  static absl::StatusOr<std::unique_ptr<RankGroup>> Over(std::unique_ptr<Communicator> comm,
                                                         const ExecutorOptions& options);
  ~RankGroup();  // Stop, errors logged

  Executor& leader() { return *leader_; }
  int size() const { return leader_->comm().size(); }

  // The last plan goes out, threads are joined. OK when every rank left in good order.
  absl::Status Stop();

 private:
  RankGroup() = default;
  std::vector<std::unique_ptr<Communicator>> comms_;
  std::unique_ptr<Executor> leader_;
  std::vector<std::unique_ptr<Executor>> followers_;
  std::vector<std::thread> threads_;
  std::vector<absl::Status> statuses_;
  std::string numerics_;
  bool stopped_ = false;
};

}  // namespace kvring
