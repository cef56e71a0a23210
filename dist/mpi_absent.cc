// SPDX-License-Identifier: Apache-2.0
// In place of mpi_communicator.cc in builds without MPI.
#include "dist/inproc_communicator.h"
#include "dist/mpi_communicator.h"
#include "dist/mpi_launch.h"

namespace kvring {

absl::StatusOr<std::unique_ptr<Communicator>> CreateMpiCommunicator(int* argc, char*** argv,
                                                                    const MpiOptions& options) {
  if (DetectMpiLaunch().size == 1) return std::move(MakeInprocCommunicators(1)[0]);
  return absl::UnimplementedError(
      "started by an MPI launcher, but built without MPI: build with -DKVRING_MPI=ON, or use "
      "ranks as threads");
}

}  // namespace kvring
