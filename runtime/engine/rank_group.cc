// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/rank_group.h"

#include "dist/inproc_communicator.h"
#include "kernels/parallel.h"

namespace kvring {
namespace {

constexpr absl::Duration kIdleLimit =
    absl::Hours(24 * 365);  // a follower waits for as long as its leader lives

}  // namespace

absl::StatusOr<std::unique_ptr<RankGroup>> RankGroup::Threads(int ranks, int threads_per_rank,
                                                              const ExecutorOptions& options,
                                                              std::span<const Cores> cores) {
  if (ranks < 1 || ranks > options.virtual_shards) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--ranks ", ranks, ": must be in [1, ", options.virtual_shards, "], the virtual shards"));
  }
  auto group = std::unique_ptr<RankGroup>(new RankGroup);
  group->numerics_ = options.numerics;
  group->comms_ = MakeInprocCommunicators(ranks);
  const auto cores_of = [&](int r) { return cores.empty() ? Cores() : cores[r]; };
  if (!cores.empty()) BindThread(cores[0]);
  SetThreads(threads_per_rank);
  KVRING_ASSIGN_OR_RETURN(group->leader_, Executor::Create(options, group->comms_[0].get()));
  for (int r = 1; r < ranks; ++r) {
    KVRING_ASSIGN_OR_RETURN(auto follower, Executor::Create(options, group->comms_[r].get()));
    group->followers_.push_back(std::move(follower));
  }
  group->statuses_.resize(ranks);
  for (int r = 1; r < ranks; ++r) {
    group->threads_.emplace_back([g = group.get(), r, threads_per_rank, own = cores_of(r)] {
      if (!own.empty()) BindThread(own);
      SetThreads(threads_per_rank);
      g->statuses_[r] = g->followers_[r - 1]->Follow(kIdleLimit);
    });
  }
  return group;
}

absl::StatusOr<std::unique_ptr<RankGroup>> RankGroup::Over(std::unique_ptr<Communicator> comm,
                                                           const ExecutorOptions& options) {
  auto group = std::unique_ptr<RankGroup>(new RankGroup);
  group->numerics_ = options.numerics;
  group->comms_.push_back(std::move(comm));
  KVRING_ASSIGN_OR_RETURN(group->leader_, Executor::Create(options, group->comms_[0].get()));
  return group;
}

absl::Status RankGroup::Stop() {
  if (stopped_ || leader_ == nullptr) return absl::OkStatus();
  stopped_ = true;
  absl::Status status = leader_->comm().status();
  if (status.ok()) {
    StepPlan plan;
    plan.numerics = numerics_;
    plan.last = true;
    status = leader_->Lead(plan).status();
  }
  for (std::thread& thread : threads_) thread.join();
  for (const absl::Status& of_rank : statuses_) status.Update(of_rank);
  return status;
}

RankGroup::~RankGroup() {
  const absl::Status status = Stop();
  (void)status;  // whoever wants to know calls Stop
}

}  // namespace kvring
