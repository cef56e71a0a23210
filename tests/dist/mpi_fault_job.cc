// SPDX-License-Identifier: Apache-2.0
// A job in which rank 1 fails in the way that the argument names, while the others gather. Every rank that is alive then
// prints one line with what its communicator answered. Run by mpi_fault_test.
#include <csignal>
#include <cstdio>
#include <cstring>

#include "absl/time/clock.h"
#include "dist/mpi_communicator.h"

namespace kvring {
namespace {

absl::Status Gather(Communicator& comm, Deadline deadline) {
  const int own = comm.rank();
  std::vector<int> all(comm.size());
  const std::vector<int64_t> bytes(comm.size(), sizeof(int));
  return comm.AllGatherV(&own, sizeof(own), all.data(), bytes, deadline);
}

absl::Status FailingRank(Communicator& comm, const std::string& fault, Deadline deadline) {
  if (fault == "stop") raise(SIGSTOP);
  if (fault == "kill") raise(SIGKILL);
  if (fault == "abort") comm.Abort(absl::CancelledError("enough"));
  if (fault == "kinds") return comm.Barrier(deadline);
  if (fault == "counts") {
    std::vector<char> in(100);
    const std::vector<int64_t> bytes = {4, 2, 4};  // the others expect 4 of everyone
    return comm.AllGatherV(in.data(), 2, in.data() + 10, bytes, deadline);
  }
  if (fault == "none") return Gather(comm, deadline);
  return comm.status();  // "leave", "abort"
}

int Run(int argc, char** argv) {
  const std::string fault = argc > 1 ? argv[1] : "none";
  auto comm = CreateMpiCommunicator(&argc, &argv);
  if (!comm.ok()) return 1;
  const Deadline soon = absl::Now() + absl::Seconds(fault == "stop" ? 2 : 60);
  absl::Status status = (*comm)->Barrier(soon);
  const int rank = (*comm)->rank();
  if (status.ok() && rank == 1)
    status = FailingRank(**comm, fault, soon);
  else if (status.ok())
    status = Gather(**comm, soon);
  printf("[rank %d] %s\n", rank, status.ToString().c_str());
  fflush(stdout);
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace kvring

int main(int argc, char** argv) { return kvring::Run(argc, argv); }
