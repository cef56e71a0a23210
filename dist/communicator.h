// SPDX-License-Identifier: Apache-2.0
// How ranks talk: a small set of operations, posted without blocking, each wait bounded by a deadline.
//
// Contract. Every rank of a communicator posts the same operations in the same order; a rank with nothing to say still
// posts, with counts of zero. Buffers belong to the caller and stay valid and untouched until the Pending is done.
// The first error (a lost peer, a deadline, Abort) is kept: every later call answers with it, and every waiter wakes.
// One thread per rank uses a communicator; Abort alone may come from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/status.h"

namespace kvring {

// The point in time at which a wait gives up. absl::InfiniteFuture() is not accepted by implementations: nothing waits
// without an end.
using Deadline = absl::Time;

enum class CommKind : uint8_t { kBarrier, kBroadcast, kAllGatherV, kAllToAllV, kSendRecv };

struct CommOp {
  CommKind kind = CommKind::kBarrier;
  int root = 0;  // kBroadcast: who has the data
  // kBroadcast on the root: the data; kAllGatherV: own part; kAllToAllV: parts for rank 0, 1, .. one after the other.
  const void* send = nullptr;
  // kBroadcast elsewhere: room for the data; else parts from rank 0, 1, .. one after the other.
  void* recv = nullptr;
  // kAllGatherV, kSendRecv: [1]; kAllToAllV: [N]; kBroadcast: [1], the same on all.
  std::vector<int64_t> send_bytes = {};
  std::vector<int64_t> recv_bytes = {};  // kAllGatherV, kAllToAllV: [N]; kSendRecv: [1]
  int to = -1, from = -1;                // kSendRecv: ring neighbours
};

// One posted operation. Destroying a Pending that is not done aborts the communicator.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual absl::StatusOr<bool> Poll() = 0;  // true when done
  virtual absl::Status Wait(Deadline deadline) = 0;
};

// Bytes that went over the wire from this rank to others, by kind; for tests against the formulas of the spec.
struct CommTraffic {
  int64_t operations = 0;
  int64_t bytes_sent = 0;  // to other ranks; what stays on this rank is not counted
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual absl::StatusOr<std::unique_ptr<Pending>> Post(const CommOp& op) = 0;
  virtual void Abort(absl::Status why) = 0;
  virtual absl::Status status() const = 0;  // OK, or the first error
  const CommTraffic& traffic() const { return traffic_; }

  // Post and wait, in the forms that the runtime uses.
  absl::Status Barrier(Deadline deadline);
  absl::Status Broadcast(int root, void* data, int64_t bytes, Deadline deadline);
  // Length first, then the bytes: for messages whose size only the root knows. `data` is replaced on the others.
  absl::Status BroadcastString(int root, std::string& data, Deadline deadline);
  absl::Status AllGatherV(const void* send, int64_t send_bytes, void* recv,
                          std::span<const int64_t> recv_bytes, Deadline deadline);
  absl::Status AllToAllV(const void* send, std::span<const int64_t> send_bytes, void* recv,
                         std::span<const int64_t> recv_bytes, Deadline deadline);
  absl::Status SendRecv(int to, const void* send, int64_t send_bytes, int from, void* recv,
                        int64_t recv_bytes, Deadline deadline);

 protected:
  CommTraffic traffic_;
};

}  // namespace kvring
