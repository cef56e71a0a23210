// SPDX-License-Identifier: Apache-2.0
// `--mpi`: kvring starts mpirun itself, with binding and oversubscription that are sane on one host, as root and in
// containers too.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace kvring {

// Runs this program again under `mpirun -n ranks` with `arguments` (without --mpi and --ranks) and waits. Signals that would end
// this process are passed on, nothing stays behind. OK when the job exits 0; CANCELLED after Ctrl-C; UNAVAILABLE when a rank was
// lost (75); else INVALID_ARGUMENT with an empty message, since rank 0 has said why.
absl::Status SpawnUnderMpirun(int ranks, const std::vector<std::string>& arguments);

// Arguments of this process (from /proc/self/cmdline), without the program's name, `--mpi` and `--ranks N`.
std::vector<std::string> ArgumentsForRanks();

}  // namespace kvring
