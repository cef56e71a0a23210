// SPDX-License-Identifier: Apache-2.0
// What every communicator asks about an operation before it posts it. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "dist/communicator.h"

namespace kvring {

const char* CommKindName(CommKind kind);  // "all-gather"

// "all-gather number 17": how messages name an operation. `number` counts the operations of a communicator from 0.
std::string DescribeOp(CommKind kind, int64_t number);

// INVALID_ARGUMENT when counts, ranks or buffers do not fit the kind.
absl::Status CheckOp(const CommOp& op, int rank, int size);

// INVALID_ARGUMENT for a deadline without an end.
absl::Status CheckDeadline(Deadline deadline);

// Bytes that travel from `from` to `to` as the sender, and as the receiver, says. 0 where nothing travels.
int64_t BytesSent(const CommOp& op, int from, int to);
int64_t BytesReceived(const CommOp& op, int from, int to);

// Where the part for `to` starts in op.send, and the part of `from` in op.recv, on rank `rank`.
const char* SendPart(const CommOp& op, int to);
char* RecvPart(const CommOp& op, int from);

// Bytes of the operation that leave this rank.
int64_t BytesToOthers(const CommOp& op, int rank, int size);

}  // namespace kvring
