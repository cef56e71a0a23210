// SPDX-License-Identifier: Apache-2.0
// What the launcher's environment says about this process, without starting MPI. Also there in builds without MPI.
#pragma once

namespace kvring {

struct MpiLaunch {
  bool launched = false;  // started by mpirun, srun or the like
  int rank = 0;
  int size = 1;        // 0: launched, but the environment does not say
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;  // ranks on this host: cores / local_size is a fair number of threads
};

// Reads Open MPI's OMPI_COMM_WORLD_*, else the PMI_* of Hydra and Slurm with SLURM_* or MPI_LOCALNRANKS for the host.
MpiLaunch DetectMpiLaunch();

}  // namespace kvring
