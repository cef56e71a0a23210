// SPDX-License-Identifier: Apache-2.0
#include "launch/job.h"

#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "dist/mpi_communicator.h"
#include "kernels/parallel.h"
#include "runtime/base/log.h"

namespace kvring {
namespace {

struct RankWord {
  int32_t code;
  char message[1020];
};

// What a process tells the others of its host.
struct HostWord {
  char host[256] = {};
  cpu_set_t mask;
};

HostWord OwnHost() {
  HostWord word;
  gethostname(word.host, sizeof(word.host) - 1);
  CPU_ZERO(&word.mask);
  for (const int core : AllowedCores()) CPU_SET(core, &word.mask);
  return word;
}

Cores CoresOf(const cpu_set_t& mask) {
  Cores cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &mask)) cores.push_back(core);
  return cores;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Job>> Job::Join(const JobFlags& flags, bool ranks_given) {
  auto job = std::unique_ptr<Job>(new Job);
  const MpiLaunch launch = DetectMpiLaunch();
  if (!launch.launched) {
    if (flags.ranks < 1)
      return absl::InvalidArgumentError(
          absl::StrCat("--ranks ", flags.ranks, ": must be at least 1"));
    job->size_ = job->ranks_on_host_ = flags.ranks;
    job->cores_ = AllowedCores();
    return job;
  }
  KVRING_ASSIGN_OR_RETURN(job->comm_, CreateMpiCommunicator(nullptr, nullptr));
  job->processes_ = true;
  job->rank_ = job->comm_->rank();
  job->size_ = job->comm_->size();
  job->ranks_on_host_ = std::max(1, launch.local_size);
  SetLogRank(job->rank_);
  if (ranks_given && flags.ranks != job->size_) {
    const absl::Status status =
        absl::InvalidArgumentError(absl::StrCat("--ranks ", flags.ranks, " differs from the ",
                                                job->size_, " ranks that the launcher started"));
    return job->Agree(status, absl::Seconds(30));
  }
  KVRING_RETURN_IF_ERROR(job->DivideCores());
  return job;
}

absl::Status Job::DivideCores() {
  const HostWord mine = OwnHost();
  std::vector<HostWord> words(size_);
  const std::vector<int64_t> bytes(size_, sizeof(HostWord));
  KVRING_RETURN_IF_ERROR(comm_->AllGatherV(&mine, sizeof(mine), words.data(), bytes,
                                           absl::Now() + absl::Seconds(300)));
  std::vector<Cores> masks;
  int self = 0;
  for (int r = 0; r < size_; ++r) {
    if (std::strcmp(words[r].host, mine.host) != 0) continue;
    if (r == rank_) self = static_cast<int>(masks.size());
    masks.push_back(CoresOf(words[r].mask));
  }
  cores_ = ShareOfHost(masks, self);
  return absl::OkStatus();
}

absl::StatusOr<ThreadPlan> Job::PlanRanks(int asked, Pinning pinning, absl::Duration timeout) {
  absl::StatusOr<ThreadPlan> plan = PlanThreads(cores_, processes_ ? 1 : size_, asked, pinning);
  KVRING_RETURN_IF_ERROR(Agree(plan.status(), timeout));
  if (plan->crowded) SetWatchMicroseconds(0);
  // From here on, so that weights lie where they are read. Ranks of one process share them: all its cores load them.
  if (processes_ && !plan->cores.empty()) BindThread(plan->cores[0]);
  return plan;
}

absl::Status Job::Agree(const absl::Status& mine, absl::Duration timeout) {
  if (comm_ == nullptr) return mine;
  RankWord word{static_cast<int32_t>(mine.code()), {}};
  const std::string message(mine.message());
  std::strncpy(word.message, message.c_str(), sizeof(word.message) - 1);
  std::vector<RankWord> words(size_);
  const std::vector<int64_t> bytes(size_, sizeof(RankWord));
  KVRING_RETURN_IF_ERROR(
      comm_->AllGatherV(&word, sizeof(word), words.data(), bytes, absl::Now() + timeout));
  for (int r = 0; r < size_; ++r) {
    if (words[r].code == 0) continue;
    const auto code = static_cast<absl::StatusCode>(words[r].code);
    const std::string who = r == 0 ? "" : absl::StrCat("rank ", r, ": ");
    if (leads()) SayNow(absl::Status(code, absl::StrCat(who, words[r].message))).IgnoreError();
    // Nobody leaves before it is printed.
    comm_->Barrier(absl::Now() + timeout).IgnoreError();
    return absl::Status(code, "");
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Job::FromLeader(int64_t value, absl::Duration timeout) {
  if (comm_ != nullptr) {
    KVRING_RETURN_IF_ERROR(comm_->Broadcast(0, &value, sizeof(value), absl::Now() + timeout));
  }
  return value;
}

absl::StatusOr<int64_t> Job::Least(int64_t value, absl::Duration timeout) {
  if (comm_ == nullptr) return value;
  std::vector<int64_t> values(size_);
  const std::vector<int64_t> bytes(size_, sizeof(value));
  KVRING_RETURN_IF_ERROR(
      comm_->AllGatherV(&value, sizeof(value), values.data(), bytes, absl::Now() + timeout));
  return *std::min_element(values.begin(), values.end());
}

absl::StatusOr<std::unique_ptr<RankGroup>> Job::Lead(const ThreadPlan& threads,
                                                     const ExecutorOptions& options) {
  SetThreads(threads.threads);
  if (comm_ == nullptr) return RankGroup::Threads(size_, threads.threads, options, threads.cores);
  return RankGroup::Over(std::move(comm_), options);
}

absl::Status Job::Follow(const ThreadPlan& threads, const ExecutorOptions& options) {
  SetThreads(threads.threads);
  KVRING_ASSIGN_OR_RETURN(const auto executor, Executor::Create(options, comm_.get()));
  return executor->Follow(absl::Hours(24 * 365));
}

absl::Status SayNow(const absl::Status& status) {
  if (!status.ok() && !status.message().empty()) {
    std::fprintf(stderr, "kvring: %s\n", std::string(status.message()).c_str());
    std::fflush(stderr);
  }
  return absl::Status(status.code(), "");
}

void EndOnInterrupt() {
  struct sigaction action {};
  action.sa_handler = [](int) {
    const char newline = '\n';
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, &newline, 1);
    _exit(130);
  };
  sigaction(SIGINT, &action, nullptr);
}

}  // namespace kvring
