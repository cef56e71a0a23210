// SPDX-License-Identifier: Apache-2.0
#include "tests/support/rank_harness.h"

#include <thread>

#include "absl/time/clock.h"
#include "dist/inproc_communicator.h"
#include "kernels/parallel.h"

namespace kvring {

Deadline TestDeadline() { return absl::Now() + absl::Seconds(60); }

std::vector<absl::Status> RunRanks(int n, const std::function<absl::Status(Communicator&)>& body) {
  std::vector<std::unique_ptr<Communicator>> comms = MakeInprocCommunicators(n);
  std::vector<absl::Status> results(n);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      SetThreads(1);
      std::unique_ptr<Communicator> own = std::move(comms[rank]);
      results[rank] = body(*own);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace kvring
