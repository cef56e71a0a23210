// SPDX-License-Identifier: Apache-2.0
#include "dist/mpi_launch.h"

#include <cstdlib>
#include <initializer_list>

#include "absl/strings/numbers.h"

namespace kvring {
namespace {

// The first of `names` that is set to a number, else `otherwise`.
int EnvironmentInt(std::initializer_list<const char*> names, int otherwise) {
  for (const char* name : names) {
    int value = 0;
    if (const char* text = std::getenv(name); text != nullptr && absl::SimpleAtoi(text, &value)) {
      return value;
    }
  }
  return otherwise;
}

}  // namespace

MpiLaunch DetectMpiLaunch() {
  MpiLaunch launch;
  launch.rank = EnvironmentInt({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}, -1);
  launch.launched = launch.rank >= 0;
  if (!launch.launched) return MpiLaunch{};
  launch.size = EnvironmentInt({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 0);
  launch.local_rank =
      EnvironmentInt({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}, 0);
  launch.local_size =
      EnvironmentInt({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"}, 1);
  return launch;
}

}  // namespace kvring
