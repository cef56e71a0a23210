// SPDX-License-Identifier: Apache-2.0
#include "dist/inproc_communicator.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "absl/strings/str_join.h"
#include "dist/comm_op.h"

namespace kvring {
namespace {

// One operation of all ranks.
struct Slot {
  explicit Slot(int n) : ops(n), pairs_done(n, 0), copying(n, 0) {}
  std::vector<std::optional<CommOp>> ops;  // by rank; empty until it posts
  std::vector<int> pairs_done;             // by rank: partners with which nothing is left to copy
  std::vector<int> copying;                // by rank: copies under way that touch its buffers
  int posted = 0;
};

class Group {
 public:
  explicit Group(int n) : n_(n), next_(n, 0), left_(n, false) {}

  int size() const { return n_; }
  absl::StatusOr<std::shared_ptr<Slot>> Post(int rank, const CommOp& op, int64_t* number);
  absl::StatusOr<bool> Poll(int rank, const Slot& slot);
  absl::Status Wait(int rank, int64_t number, const Slot& slot, Deadline deadline);
  void Drop(int rank, int64_t number, const Slot& slot);
  void Leave(int rank);
  void Abort(const absl::Status& why);
  absl::Status status() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  absl::StatusOr<std::shared_ptr<Slot>> Register(int rank, const CommOp& op, int64_t* number);
  absl::Status CheckPeers(int rank, const CommOp& op, int64_t number, const Slot& slot) const;
  absl::Status Late(int rank, int64_t number, const Slot& slot) const;
  void CopyPairs(int rank, Slot& slot, const std::vector<int>& partners);
  const absl::Status& Fail(const absl::Status& why);  // keeps the first error and answers it
  bool Done(int rank, const Slot& slot) const { return slot.pairs_done[rank] == n_; }

  const int n_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status error_;
  std::vector<int64_t> next_;  // by rank: number of its next operation
  std::vector<bool> left_;
  std::map<int64_t, std::shared_ptr<Slot>> open_;  // operations that somebody has yet to post
};

const absl::Status& Group::Fail(const absl::Status& why) {
  if (error_.ok()) error_ = why;
  changed_.notify_all();
  return error_;
}

// What two ranks say about the same operation must agree.
absl::Status Group::CheckPeers(int rank, const CommOp& op, int64_t number, const Slot& slot) const {
  for (int peer = 0; peer < n_; ++peer) {
    if (left_[peer] && next_[peer] <= number) {
      return absl::UnavailableError(
          absl::StrCat("rank ", peer, " left before ", DescribeOp(op.kind, number)));
    }
    if (!slot.ops[peer].has_value()) continue;
    const CommOp& other = *slot.ops[peer];
    if (other.kind != op.kind) {
      return absl::InternalError(absl::StrCat("rank ", rank, " posted ", CommKindName(op.kind),
                                              " as operation ", number, " where rank ", peer,
                                              " posted ", CommKindName(other.kind)));
    }
    const bool roots = op.kind != CommKind::kBroadcast || op.root == other.root;
    const bool ring = op.kind != CommKind::kSendRecv || ((op.to == peer) == (other.from == rank) &&
                                                         (op.from == peer) == (other.to == rank));
    if (!roots || !ring || BytesSent(op, rank, peer) != BytesReceived(other, rank, peer) ||
        BytesSent(other, peer, rank) != BytesReceived(op, peer, rank)) {
      return absl::InternalError(absl::StrCat("ranks ", rank, " and ", peer,
                                              " disagree about roots or byte counts of ",
                                              DescribeOp(op.kind, number)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Slot>> Group::Register(int rank, const CommOp& op, int64_t* number) {
  if (!error_.ok()) return error_;
  if (absl::Status valid = CheckOp(op, rank, n_); !valid.ok()) {
    return Fail(Annotate(valid, absl::StrCat("rank ", rank)));
  }
  *number = next_[rank];
  std::shared_ptr<Slot>& open = open_[*number];
  if (open == nullptr) open = std::make_shared<Slot>(n_);
  std::shared_ptr<Slot> slot = open;
  KVRING_RETURN_IF_ERROR([&] {
    absl::Status agreed = CheckPeers(rank, op, *number, *slot);
    return agreed.ok() ? agreed : Fail(agreed);
  }());
  ++next_[rank];
  slot->ops[rank] = op;
  if (++slot->posted == n_) open_.erase(*number);
  return slot;
}

void CopyPart(const CommOp& sender, int from, const CommOp& receiver, int to) {
  const int64_t bytes = BytesSent(sender, from, to);
  if (bytes == 0) return;
  const char* source = SendPart(sender, to);
  char* target = RecvPart(receiver, from);
  if (source != target) std::memcpy(target, source, static_cast<size_t>(bytes));
}

void Group::CopyPairs(int rank, Slot& slot, const std::vector<int>& partners) {
  const CommOp& own = *slot.ops[rank];
  for (int peer : partners) {
    CopyPart(own, rank, *slot.ops[peer], peer);
    if (peer != rank) CopyPart(*slot.ops[peer], peer, own, rank);
  }
}

absl::StatusOr<std::shared_ptr<Slot>> Group::Post(int rank, const CommOp& op, int64_t* number) {
  std::vector<int> partners;
  std::shared_ptr<Slot> slot;
  {
    Lock lock(mutex_);
    KVRING_ASSIGN_OR_RETURN(slot, Register(rank, op, number));
    for (int peer = 0; peer < n_; ++peer)
      if (slot->ops[peer].has_value()) partners.push_back(peer);
    for (int peer : partners) ++slot->copying[peer];
  }
  // The elements of slot->ops that are read here were set before, under the lock, and never change again.
  CopyPairs(rank, *slot, partners);
  Lock lock(mutex_);
  for (int peer : partners) {
    --slot->copying[peer];
    ++slot->pairs_done[peer];
    if (peer != rank) ++slot->pairs_done[rank];
  }
  changed_.notify_all();
  return slot;
}

absl::StatusOr<bool> Group::Poll(int rank, const Slot& slot) {
  Lock lock(mutex_);
  if (!error_.ok()) return error_;
  return Done(rank, slot);
}

absl::Status Group::Late(int rank, int64_t number, const Slot& slot) const {
  std::vector<int> missing;
  for (int peer = 0; peer < n_; ++peer)
    if (!slot.ops[peer].has_value()) missing.push_back(peer);
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", rank, ": ", DescribeOp(slot.ops[rank]->kind, number),
                   " was not done in time; not posted by rank ", absl::StrJoin(missing, ", ")));
}

absl::Status Group::Wait(int rank, int64_t number, const Slot& slot, Deadline deadline) {
  KVRING_RETURN_IF_ERROR(CheckDeadline(deadline));
  // Capped, since the sum must fit the clock.
  const absl::Duration left = std::min(deadline - absl::Now(), absl::Hours(24 * 365));
  const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(left);
  Lock lock(mutex_);
  changed_.wait_until(lock, until, [&] { return !error_.ok() || Done(rank, slot); });
  if (error_.ok() && Done(rank, slot)) return absl::OkStatus();
  const absl::Status first = Fail(Late(rank, number, slot));
  // The caller may free its buffers once we answer: wait out copies that touch them (bounded by a copy's length).
  changed_.wait(lock, [&] { return slot.copying[rank] == 0; });
  return first;
}

void Group::Drop(int rank, int64_t number, const Slot& slot) {
  Lock lock(mutex_);
  if (Done(rank, slot)) return;
  Fail(absl::AbortedError(absl::StrCat("rank ", rank, " dropped ",
                                       DescribeOp(slot.ops[rank]->kind, number),
                                       " before it was done")));
  changed_.wait(lock, [&] { return slot.copying[rank] == 0; });
}

void Group::Leave(int rank) {
  Lock lock(mutex_);
  left_[rank] = true;
  for (const auto& [number, slot] : open_) {
    if (slot->ops[rank].has_value()) continue;
    for (const auto& op : slot->ops) {
      if (!op.has_value()) continue;
      Fail(absl::UnavailableError(
          absl::StrCat("rank ", rank, " left before ", DescribeOp(op->kind, number))));
      return;
    }
  }
}

void Group::Abort(const absl::Status& why) {
  Lock lock(mutex_);
  Fail(why.ok() ? absl::AbortedError("aborted without a reason") : why);
}

absl::Status Group::status() const {
  Lock lock(mutex_);
  return error_;
}

class InprocPending : public Pending {
 public:
  InprocPending(std::shared_ptr<Group> group, std::shared_ptr<Slot> slot, int rank, int64_t number)
      : group_(std::move(group)), slot_(std::move(slot)), rank_(rank), number_(number) {}
  ~InprocPending() override { group_->Drop(rank_, number_, *slot_); }
  absl::StatusOr<bool> Poll() override { return group_->Poll(rank_, *slot_); }
  absl::Status Wait(Deadline deadline) override {
    return group_->Wait(rank_, number_, *slot_, deadline);
  }

 private:
  std::shared_ptr<Group> group_;
  std::shared_ptr<Slot> slot_;
  int rank_;
  int64_t number_;
};

class InprocCommunicator : public Communicator {
 public:
  InprocCommunicator(std::shared_ptr<Group> group, int rank)
      : group_(std::move(group)), rank_(rank) {}
  ~InprocCommunicator() override { group_->Leave(rank_); }
  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  void Abort(absl::Status why) override { group_->Abort(why); }
  absl::Status status() const override { return group_->status(); }

  absl::StatusOr<std::unique_ptr<Pending>> Post(const CommOp& op) override {
    int64_t number = 0;
    KVRING_ASSIGN_OR_RETURN(std::shared_ptr<Slot> slot, group_->Post(rank_, op, &number));
    ++traffic_.operations;
    traffic_.bytes_sent += BytesToOthers(op, rank_, size());
    return std::make_unique<InprocPending>(group_, std::move(slot), rank_, number);
  }

 private:
  std::shared_ptr<Group> group_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeInprocCommunicators(int n) {
  std::vector<std::unique_ptr<Communicator>> ranks;
  auto group = std::make_shared<Group>(n);
  for (int rank = 0; rank < n; ++rank)
    ranks.push_back(std::make_unique<InprocCommunicator>(group, rank));
  return ranks;
}

}  // namespace kvring
