// SPDX-License-Identifier: Apache-2.0
// Ranks as processes of an MPI job. Open MPI 4.1 behaves as distributed-attention spec 8 says: a rank that dies ends the
// job from outside, a rank that is stopped shows nothing, so every wait has our own deadline.
//
// Messages go point to point, marked with the operation's number and kind; waiting polls, then yields, then sleeps, so
// that ranks which outnumber the cores do not take them from each other.
// Failure: the first error is told to all other ranks, every call answers with it, and destroying the communicator then
// ends the whole job with exit code kLostRankExitCode (MPI cannot go on in smaller form).
#pragma once

#include <cstdint>
#include <memory>

#include "dist/communicator.h"

namespace kvring {

inline constexpr int kLostRankExitCode = 75;  // EX_TEMPFAIL: start again

struct MpiOptions {
  int64_t max_message_bytes = int64_t{1}
                              << 30;  // longer parts go as several messages; at most 2^30
};

// The communicator of all ranks of the job; one at a time in a process, used by the thread that made it. Started alone,
// it is a communicator of one rank and MPI stays untouched. Destroying it ends MPI, after waiting up to 30 s for ranks
// that are still at work. UNIMPLEMENTED in builds without MPI when the process was started by a launcher.
absl::StatusOr<std::unique_ptr<Communicator>> CreateMpiCommunicator(int* argc, char*** argv,
                                                                    const MpiOptions& options = {});

}  // namespace kvring
