// SPDX-License-Identifier: Apache-2.0
#include "dist/communicator.h"

namespace kvring {
namespace {

absl::Status PostAndWait(Communicator& comm, const CommOp& op, Deadline deadline) {
  KVRING_ASSIGN_OR_RETURN(std::unique_ptr<Pending> pending, comm.Post(op));
  return pending->Wait(deadline);
}

}  // namespace

absl::Status Communicator::Barrier(Deadline deadline) {
  return PostAndWait(*this, CommOp{.kind = CommKind::kBarrier}, deadline);
}

absl::Status Communicator::Broadcast(int root, void* data, int64_t bytes, Deadline deadline) {
  CommOp op{.kind = CommKind::kBroadcast, .root = root, .send_bytes = {bytes}};
  if (root == rank()) op.send = data;
  if (root != rank()) op.recv = data;
  return PostAndWait(*this, op, deadline);
}

absl::Status Communicator::BroadcastString(int root, std::string& data, Deadline deadline) {
  int64_t length = static_cast<int64_t>(data.size());
  KVRING_RETURN_IF_ERROR(Broadcast(root, &length, sizeof(length), deadline));
  if (root != rank()) data.assign(static_cast<size_t>(length), '\0');
  return Broadcast(root, data.data(), length, deadline);
}

absl::Status Communicator::AllGatherV(const void* send, int64_t send_bytes, void* recv,
                                      std::span<const int64_t> recv_bytes, Deadline deadline) {
  CommOp op{.kind = CommKind::kAllGatherV, .send = send, .recv = recv, .send_bytes = {send_bytes}};
  op.recv_bytes.assign(recv_bytes.begin(), recv_bytes.end());
  return PostAndWait(*this, op, deadline);
}

absl::Status Communicator::AllToAllV(const void* send, std::span<const int64_t> send_bytes,
                                     void* recv, std::span<const int64_t> recv_bytes,
                                     Deadline deadline) {
  CommOp op{.kind = CommKind::kAllToAllV, .send = send, .recv = recv};
  op.send_bytes.assign(send_bytes.begin(), send_bytes.end());
  op.recv_bytes.assign(recv_bytes.begin(), recv_bytes.end());
  return PostAndWait(*this, op, deadline);
}

absl::Status Communicator::SendRecv(int to, const void* send, int64_t send_bytes, int from,
                                    void* recv, int64_t recv_bytes, Deadline deadline) {
  CommOp op{.kind = CommKind::kSendRecv, .send = send, .recv = recv};
  op.send_bytes = {send_bytes};
  op.recv_bytes = {recv_bytes};
  op.to = to;
  op.from = from;
  return PostAndWait(*this, op, deadline);
}

}  // namespace kvring
