// SPDX-License-Identifier: Apache-2.0
#include "dist/comm_op.h"

#include <numeric>

namespace kvring {
namespace {

bool AllNonNegative(const std::vector<int64_t>& counts) {
  for (int64_t count : counts)
    if (count < 0) return false;
  return true;
}

int64_t Sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

absl::Status CheckCounts(const CommOp& op, size_t sends, size_t receives) {
  if (op.send_bytes.size() != sends || op.recv_bytes.size() != receives) {
    return absl::InvalidArgumentError(absl::StrCat(
        CommKindName(op.kind), ": ", op.send_bytes.size(), " send and ", op.recv_bytes.size(),
        " receive counts where ", sends, " and ", receives, " are needed"));
  }
  if (!AllNonNegative(op.send_bytes) || !AllNonNegative(op.recv_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(CommKindName(op.kind), ": a negative count"));
  }
  return absl::OkStatus();
}

absl::Status CheckBuffers(const CommOp& op, bool sends, bool receives) {
  if ((sends && op.send == nullptr) || (receives && op.recv == nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat(CommKindName(op.kind), ": a null buffer"));
  }
  return absl::OkStatus();
}

absl::Status CheckRank(const CommOp& op, const char* what, int rank, int size) {
  if (rank >= 0 && rank < size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(CommKindName(op.kind), ": ", what, " ", rank, " of ", size, " ranks"));
}

}  // namespace

const char* CommKindName(CommKind kind) {
  switch (kind) {
    case CommKind::kBarrier:
      return "barrier";
    case CommKind::kBroadcast:
      return "broadcast";
    case CommKind::kAllGatherV:
      return "all-gather";
    case CommKind::kAllToAllV:
      return "all-to-all";
    case CommKind::kSendRecv:
      return "send-receive";
  }
  return "unknown operation";
}

std::string DescribeOp(CommKind kind, int64_t number) {
  return absl::StrCat(CommKindName(kind), " number ", number);
}

absl::Status CheckOp(const CommOp& op, int rank, int size) {
  switch (op.kind) {
    case CommKind::kBarrier:
      return CheckCounts(op, 0, 0);
    case CommKind::kBroadcast:
      KVRING_RETURN_IF_ERROR(CheckRank(op, "root", op.root, size));
      KVRING_RETURN_IF_ERROR(CheckCounts(op, 1, 0));
      return CheckBuffers(op, op.root == rank && op.send_bytes[0] > 0,
                          op.root != rank && op.send_bytes[0] > 0);
    case CommKind::kAllGatherV:
      KVRING_RETURN_IF_ERROR(CheckCounts(op, 1, size));
      return CheckBuffers(op, op.send_bytes[0] > 0, Sum(op.recv_bytes) > 0);
    case CommKind::kAllToAllV:
      KVRING_RETURN_IF_ERROR(CheckCounts(op, size, size));
      return CheckBuffers(op, Sum(op.send_bytes) > 0, Sum(op.recv_bytes) > 0);
    case CommKind::kSendRecv:
      KVRING_RETURN_IF_ERROR(CheckRank(op, "receiver", op.to, size));
      KVRING_RETURN_IF_ERROR(CheckRank(op, "sender", op.from, size));
      KVRING_RETURN_IF_ERROR(CheckCounts(op, 1, 1));
      return CheckBuffers(op, op.send_bytes[0] > 0, op.recv_bytes[0] > 0);
  }
  return absl::InvalidArgumentError("an operation of unknown kind");
}

absl::Status CheckDeadline(Deadline deadline) {
  if (deadline != absl::InfiniteFuture()) return absl::OkStatus();
  return absl::InvalidArgumentError("a wait without an end: the deadline is infinite");
}

int64_t BytesSent(const CommOp& op, int from, int to) {
  switch (op.kind) {
    case CommKind::kBarrier:
      return 0;
    case CommKind::kBroadcast:
      return from == op.root && to != from ? op.send_bytes[0] : 0;
    case CommKind::kAllGatherV:
      return op.send_bytes[0];
    case CommKind::kAllToAllV:
      return op.send_bytes[to];
    case CommKind::kSendRecv:
      return to == op.to ? op.send_bytes[0] : 0;
  }
  return 0;
}

int64_t BytesReceived(const CommOp& op, int from, int to) {
  switch (op.kind) {
    case CommKind::kBarrier:
      return 0;
    case CommKind::kBroadcast:
      return from == op.root && to != from ? op.send_bytes[0] : 0;
    case CommKind::kAllGatherV:
      return op.recv_bytes[from];
    case CommKind::kAllToAllV:
      return op.recv_bytes[from];
    case CommKind::kSendRecv:
      return from == op.from ? op.recv_bytes[0] : 0;
  }
  return 0;
}

const char* SendPart(const CommOp& op, int to) {
  const char* begin = static_cast<const char*>(op.send);
  if (op.kind != CommKind::kAllToAllV) return begin;
  return begin + std::accumulate(op.send_bytes.begin(), op.send_bytes.begin() + to, int64_t{0});
}

char* RecvPart(const CommOp& op, int from) {
  char* begin = static_cast<char*>(op.recv);
  if (op.kind != CommKind::kAllToAllV && op.kind != CommKind::kAllGatherV) return begin;
  return begin + std::accumulate(op.recv_bytes.begin(), op.recv_bytes.begin() + from, int64_t{0});
}

int64_t BytesToOthers(const CommOp& op, int rank, int size) {
  int64_t bytes = 0;
  for (int to = 0; to < size; ++to)
    if (to != rank) bytes += BytesSent(op, rank, to);
  return bytes;
}

}  // namespace kvring
