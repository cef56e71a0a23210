// SPDX-License-Identifier: Apache-2.0
#include "dist/mpi_communicator.h"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "dist/comm_op.h"
#include "dist/inproc_communicator.h"
#include "dist/mpi_launch.h"

namespace kvring {
namespace {

constexpr int kKindBits = 3;  // of a message's tag; the operation's number has the rest
constexpr absl::Duration kLeaveGrace =
    absl::Seconds(30);  // for ranks still at work when this one is done
constexpr absl::Duration kAbortGrace =
    absl::Seconds(3);  // for rank 0 to report before the job is ended
constexpr absl::Duration kTellGrace = absl::Seconds(1);  // for an error to reach the others
constexpr absl::Duration kProbeEvery = absl::Milliseconds(50);

absl::Status MpiError(int code, const std::string& where) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return absl::InternalError(absl::StrCat(where, ": ", text));
}

// Grows more patient: at once, then letting others run, then asleep. A decode step's messages take microseconds, a
// prefill's wait takes seconds in which the core belongs to whoever computes.
class Backoff {
 public:
  void Pause() {
    ++polls_;
    if (polls_ < 64) return;
    if (polls_ == 64) yield_until_ = absl::Now() + absl::Microseconds(300);
    if (!asleep_ && absl::Now() < yield_until_) {
      sched_yield();
      return;
    }
    asleep_ = true;
    absl::SleepFor(sleep_);
    sleep_ = std::min(sleep_ * 1.25, absl::Milliseconds(1));
  }

 private:
  int polls_ = 0;
  bool asleep_ = false;
  absl::Time yield_until_;
  absl::Duration sleep_ = absl::Microseconds(30);
};

// What ranks tell each other beside the operations.
struct ControlMessage {
  enum What : int32_t { kLeft, kError };
  int32_t what = kLeft;
  int32_t code = 0;        // kError: absl::StatusCode
  int64_t operations = 0;  // kLeft: how many the sender has posted
  char text[496] = {};     // kError
};

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(const MpiOptions& options, bool owns_mpi)
      : chunk_(options.max_message_bytes), owns_mpi_(owns_mpi) {}
  ~MpiCommunicator() override;
  absl::Status Init();

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  absl::StatusOr<std::unique_ptr<Pending>> Post(const CommOp& op) override;
  void Abort(absl::Status why) override {
    Fail(why.ok() ? absl::AbortedError("aborted without a reason") : why);
  }
  absl::Status status() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return error_;
  }

 private:
  friend class MpiPending;
  const absl::Status& Fail(const absl::Status& why);  // keeps the first error and answers it
  absl::Status FailAndTell(const absl::Status& why);  // from the rank's own thread
  absl::Status Progress(int64_t number);  // hears from others; the error, if there is one
  void Hear(const ControlMessage& message, int from);
  void Tell(const ControlMessage& message);
  void TellError();
  bool Told();
  void ListenAgain();
  absl::Status FindMismatch(CommKind kind, int64_t number);
  int Tag(CommKind kind, int64_t number) const {
    return static_cast<int>((number & number_mask_) << kKindBits) | static_cast<int>(kind);
  }
  void Leave();
  [[noreturn]] void EndJob();

  const int64_t chunk_;
  const bool owns_mpi_;
  MPI_Comm data_ = MPI_COMM_NULL, control_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  int64_t number_mask_ = 0;
  int64_t next_ = 0;           // number of the next operation
  std::vector<int64_t> left_;  // by rank: operations it posted before it left, or -1
  mutable std::mutex mutex_;   // guards error_: Abort may come from any thread
  absl::Status error_;
  std::atomic<bool> failed_{false};
  bool told_ = false;
  ControlMessage heard_;
  MPI_Request listening_ = MPI_REQUEST_NULL;
  std::vector<std::unique_ptr<ControlMessage>> telling_;  // alive until their requests are done
  std::vector<MPI_Request> telling_requests_;
};

class MpiPending : public Pending {
 public:
  MpiPending(MpiCommunicator* comm, CommKind kind, int64_t number)
      : comm_(comm), kind_(kind), number_(number) {}
  ~MpiPending() override;
  absl::Status Start(const CommOp& op);
  absl::StatusOr<bool> Poll() override;
  absl::Status Wait(Deadline deadline) override;

 private:
  struct Message {
    int peer;
    int64_t bytes;
    bool receives;
  };
  absl::Status Transfer(int peer, char* data, int64_t bytes, bool receives);
  absl::Status Finish(int index, const MPI_Status& status, bool failed);
  std::string Waiting() const;

  MpiCommunicator* comm_;
  CommKind kind_;
  int64_t number_;
  std::vector<MPI_Request> requests_;
  std::vector<Message> messages_;  // of each request
  std::vector<int> indices_;       // room for MPI_Testsome's answers
  std::vector<MPI_Status> statuses_;
  size_t done_ = 0;
};

// Which parts travel: every pair of ranks says something, if only nothing, so that ranks that disagree notice.
bool Travels(const CommOp& op, int from, int to) {
  if (op.kind == CommKind::kBroadcast) return from == op.root;
  return true;
}

absl::Status MpiPending::Start(const CommOp& op) {
  const int rank = comm_->rank(), size = comm_->size();
  for (int peer = 0; peer < size; ++peer) {
    const bool here = op.kind == CommKind::kSendRecv ? peer == op.from : Travels(op, peer, rank);
    if (peer == rank || !here) continue;
    const int64_t bytes = BytesReceived(op, peer, rank);
    KVRING_RETURN_IF_ERROR(Transfer(peer, RecvPart(op, peer), bytes, true));
  }
  // Each rank starts with its right neighbour, so that they do not all send to rank 0 first.
  for (int step = 1; step < size; ++step) {
    const int peer = (rank + step) % size;
    if (!(op.kind == CommKind::kSendRecv ? peer == op.to : Travels(op, rank, peer))) continue;
    char* data = const_cast<char*>(SendPart(op, peer));  // only read, as MPI_Isend takes it
    KVRING_RETURN_IF_ERROR(Transfer(peer, data, BytesSent(op, rank, peer), false));
  }
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  const int64_t own = BytesSent(op, rank, rank);
  if (own != BytesReceived(op, rank, rank)) {
    return absl::InternalError(absl::StrCat("rank ", rank, " disagrees with itself about bytes of ",
                                            DescribeOp(kind_, number_)));
  }
  if (own > 0 && SendPart(op, rank) != RecvPart(op, rank)) {
    std::memcpy(RecvPart(op, rank), SendPart(op, rank), static_cast<size_t>(own));
  }
  return absl::OkStatus();
}

// Counts are int in MPI: a part goes as messages of at most chunk_ bytes, which keep their order.
absl::Status MpiPending::Transfer(int peer, char* data, int64_t bytes, bool receives) {
  const int tag = comm_->Tag(kind_, number_);
  for (int64_t at = 0; at == 0 || at < bytes; at += comm_->chunk_) {
    const int count = static_cast<int>(std::min(bytes - at, comm_->chunk_));
    char* part = count > 0 ? data + at : nullptr;
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = receives ? MPI_Irecv(part, count, MPI_BYTE, peer, tag, comm_->data_, &request)
                              : MPI_Isend(part, count, MPI_BYTE, peer, tag, comm_->data_, &request);
    if (code != MPI_SUCCESS) return MpiError(code, DescribeOp(kind_, number_));
    requests_.push_back(request);
    messages_.push_back({peer, count, receives});
  }
  return absl::OkStatus();
}

absl::Status MpiPending::Finish(int index, const MPI_Status& status, bool failed) {
  const Message& message = messages_[index];
  int bytes = 0;
  if (!failed && message.receives) MPI_Get_count(&status, MPI_BYTE, &bytes);
  failed = failed && status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING;
  if (!failed && (!message.receives || bytes == message.bytes)) return absl::OkStatus();
  const std::string where = absl::StrCat("rank ", comm_->rank(), ", ", DescribeOp(kind_, number_),
                                         ", peer ", message.peer);
  if (failed && status.MPI_ERROR != MPI_ERR_TRUNCATE) return MpiError(status.MPI_ERROR, where);
  return absl::InternalError(
      absl::StrCat(where, ": ranks disagree about byte counts: ", message.bytes, " were expected, ",
                   failed ? "more" : absl::StrCat(bytes), " came"));
}

absl::StatusOr<bool> MpiPending::Poll() {
  KVRING_RETURN_IF_ERROR(comm_->Progress(number_));
  if (done_ == requests_.size()) return true;
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                indices_.data(), statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
    return comm_->FailAndTell(MpiError(code, DescribeOp(kind_, number_)));
  }
  for (int i = 0; i < (count == MPI_UNDEFINED ? 0 : count); ++i) {
    // Statuses carry errors only when the call says so.
    const absl::Status fine = Finish(indices_[i], statuses_[i], code != MPI_SUCCESS);
    if (!fine.ok()) return comm_->FailAndTell(fine);
    ++done_;
  }
  return done_ == requests_.size();
}

std::string MpiPending::Waiting() const {
  std::set<int> peers;
  for (size_t i = 0; i < requests_.size(); ++i)
    if (requests_[i] != MPI_REQUEST_NULL) peers.insert(messages_[i].peer);
  return absl::StrJoin(peers, ", ");
}

absl::Status MpiPending::Wait(Deadline deadline) {
  KVRING_RETURN_IF_ERROR(CheckDeadline(deadline));
  Backoff backoff;
  absl::Time probe = absl::Now() + kProbeEvery;
  for (;;) {
    KVRING_ASSIGN_OR_RETURN(const bool done, Poll());
    if (done) return absl::OkStatus();
    const absl::Time now = absl::Now();
    if (now >= deadline) {
      return comm_->FailAndTell(absl::DeadlineExceededError(
          absl::StrCat("rank ", comm_->rank(), ": ", DescribeOp(kind_, number_),
                       " was not done in time; waiting for rank ", Waiting())));
    }
    if (now >= probe) {
      probe = now + kProbeEvery;
      KVRING_RETURN_IF_ERROR(comm_->FindMismatch(kind_, number_));
    }
    backoff.Pause();
  }
}

MpiPending::~MpiPending() {
  if (done_ == requests_.size()) return;
  comm_->Fail(absl::AbortedError(absl::StrCat("rank ", comm_->rank(), " dropped ",
                                              DescribeOp(kind_, number_), " before it was done")));
  // The job is about to end. What has not begun to arrive must not land in memory that the caller frees.
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    if (messages_[i].receives) MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
}

absl::Status MpiCommunicator::Init() {
  const auto call = [](int code, const char* what) { return MpiError(code, what); };
  KVRING_RETURN_IF_ERROR(call(MPI_Comm_dup(MPI_COMM_WORLD, &data_), "MPI_Comm_dup"));
  KVRING_RETURN_IF_ERROR(call(MPI_Comm_dup(MPI_COMM_WORLD, &control_), "MPI_Comm_dup"));
  MPI_Comm_set_errhandler(data_, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(control_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(data_, &rank_);
  MPI_Comm_size(data_, &size_);
  int* limit = nullptr;
  int found = 0;
  MPI_Comm_get_attr(data_, MPI_TAG_UB, &limit, &found);
  const int64_t tags = found != 0 ? int64_t{*limit} + 1 : 32768;  // 32768: what the standard grants
  number_mask_ = 1;
  while (((number_mask_ * 2 + 2) << kKindBits) <= tags) number_mask_ = number_mask_ * 2 + 1;
  left_.assign(size_, -1);
  ListenAgain();
  return absl::OkStatus();
}

const absl::Status& MpiCommunicator::Fail(const absl::Status& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (error_.ok()) error_ = why;
  failed_ = true;
  return error_;
}

absl::Status MpiCommunicator::FailAndTell(const absl::Status& why) {
  const absl::Status first = Fail(why);
  TellError();
  return first;
}

absl::StatusOr<std::unique_ptr<Pending>> MpiCommunicator::Post(const CommOp& op) {
  KVRING_RETURN_IF_ERROR(Progress(next_));
  if (absl::Status valid = CheckOp(op, rank_, size_); !valid.ok()) {
    return FailAndTell(Annotate(valid, absl::StrCat("rank ", rank_)));
  }
  auto pending = std::make_unique<MpiPending>(this, op.kind, next_++);
  if (absl::Status started = pending->Start(op); !started.ok()) return FailAndTell(started);
  ++traffic_.operations;
  traffic_.bytes_sent += BytesToOthers(op, rank_, size_);
  return pending;
}

void MpiCommunicator::ListenAgain() {
  MPI_Irecv(&heard_, sizeof(heard_), MPI_BYTE, MPI_ANY_SOURCE, 0, control_, &listening_);
}

void MpiCommunicator::Hear(const ControlMessage& message, int from) {
  if (message.what == ControlMessage::kLeft) {
    left_[from] = message.operations;
    return;
  }
  told_ = true;  // whoever failed tells everyone
  Fail(absl::Status(static_cast<absl::StatusCode>(message.code), message.text));
}

absl::Status MpiCommunicator::Progress(int64_t number) {
  for (int flag = 1; flag != 0;) {
    MPI_Status status;
    if (MPI_Test(&listening_, &flag, &status) != MPI_SUCCESS || flag == 0) break;
    const ControlMessage message = heard_;
    ListenAgain();
    Hear(message, status.MPI_SOURCE);
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (left_[peer] < 0 || left_[peer] > number) continue;
    Fail(absl::UnavailableError(absl::StrCat("rank ", peer, " left before operation ", number)));
  }
  if (!failed_) return absl::OkStatus();
  TellError();
  return status();
}

// A peer's first message that nothing here waits for, under the number that we wait for: it does something else.
absl::Status MpiCommunicator::FindMismatch(CommKind kind, int64_t number) {
  for (int peer = 0; peer < size_; ++peer) {
    int flag = 0;
    MPI_Status status;
    if (peer == rank_ || MPI_Iprobe(peer, MPI_ANY_TAG, data_, &flag, &status) != MPI_SUCCESS ||
        flag == 0) {
      continue;
    }
    const auto theirs = static_cast<CommKind>(status.MPI_TAG & ((1 << kKindBits) - 1));
    if ((status.MPI_TAG >> kKindBits) != (number & number_mask_) || theirs == kind) continue;
    return FailAndTell(absl::InternalError(
        absl::StrCat("rank ", rank_, " posted ", CommKindName(kind), " as operation ", number,
                     " where rank ", peer, " posted ", CommKindName(theirs))));
  }
  return absl::OkStatus();
}

void MpiCommunicator::Tell(const ControlMessage& message) {
  telling_.push_back(std::make_unique<ControlMessage>(message));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(telling_.back().get(), sizeof(message), MPI_BYTE, peer, 0, control_, &request);
    telling_requests_.push_back(request);
  }
}

void MpiCommunicator::TellError() {
  if (told_) return;
  told_ = true;
  const absl::Status error = status();
  ControlMessage message{.what = ControlMessage::kError,
                         .code = static_cast<int32_t>(error.code())};
  const std::string text(error.message());
  std::memcpy(message.text, text.data(), std::min(text.size(), sizeof(message.text) - 1));
  Tell(message);
}

bool MpiCommunicator::Told() {
  int flag = 0;
  MPI_Testall(static_cast<int>(telling_requests_.size()), telling_requests_.data(), &flag,
              MPI_STATUSES_IGNORE);
  return flag != 0;
}

// Rank 0 speaks to the user: the others give it time to say what happened, since ending the job ends it too.
void MpiCommunicator::EndJob() {
  TellError();
  const absl::Time tell = absl::Now() + kTellGrace;
  const absl::Time end = absl::Now() + (rank_ == 0 ? absl::ZeroDuration() : kAbortGrace);
  while ((!Told() && absl::Now() < tell) || absl::Now() < end) {
    (void)Progress(next_);  // what failed is known
    absl::SleepFor(absl::Milliseconds(1));
  }
  MPI_Abort(MPI_COMM_WORLD, kLostRankExitCode);
  std::_Exit(kLostRankExitCode);  // MPI_Abort does not come back; the compiler does not know
}

void MpiCommunicator::Leave() {
  Tell({.what = ControlMessage::kLeft, .operations = next_});
  left_[rank_] = next_;
  const absl::Time end = absl::Now() + kLeaveGrace;
  const auto everyone = [&] {
    return std::all_of(left_.begin(), left_.end(), [](int64_t posted) { return posted >= 0; });
  };
  Backoff backoff;
  while ((!everyone() || !Told()) && absl::Now() < end) {
    // -1: a rank that leaves is no fault now, so only errors that others report count.
    if (!Progress(-1).ok()) EndJob();
    backoff.Pause();
  }
}

MpiCommunicator::~MpiCommunicator() {
  if (failed_) EndJob();
  Leave();
  if (listening_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&listening_);
    MPI_Wait(&listening_, MPI_STATUS_IGNORE);
  }
  MPI_Comm_free(&control_);
  MPI_Comm_free(&data_);
  if (owns_mpi_) MPI_Finalize();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> CreateMpiCommunicator(int* argc, char*** argv,
                                                                    const MpiOptions& options) {
  int running = 0;
  MPI_Initialized(&running);
  if (running == 0 && DetectMpiLaunch().size == 1) {
    return std::move(MakeInprocCommunicators(1)[0]);
  }
  if (options.max_message_bytes < 1 || options.max_message_bytes > (int64_t{1} << 30)) {
    return absl::InvalidArgumentError("max_message_bytes must be from 1 to 2^30");
  }
  if (running == 0) {
    // Open MPI waits by spinning inside MPI_Init and MPI_Finalize; let it yield there unless the user chose.
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    int level = 0;
    KVRING_RETURN_IF_ERROR(
        MpiError(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread"));
  }
  auto comm = std::make_unique<MpiCommunicator>(options, running == 0);
  KVRING_RETURN_IF_ERROR(comm->Init());
  return comm;
}

}  // namespace kvring
