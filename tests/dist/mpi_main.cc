// SPDX-License-Identifier: Apache-2.0
// The conformance suite on the processes of one MPI job: mpirun -n N test_dist_mpi [max message bytes]. Rank 0 prints
// everything, the others what failed.
#include <gtest/gtest.h>

#include <cstdlib>

#include "dist/mpi_communicator.h"
#include "dist/mpi_launch.h"
#include "tests/dist/communicator_conformance.h"

namespace kvring {
namespace {

class MpiConformance : public ::testing::Test {
 public:
  MpiConformance(Communicator* comm, const ConformanceRow& row) : comm_(comm), row_(row) {}
  void TestBody() override {
    const absl::Status status = row_.body(*comm_);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(comm_->status().ok());
  }

 private:
  Communicator* comm_;
  ConformanceRow row_;
};

class PrintFailures : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.failed()) fprintf(stderr, "%s\n", result.message());
  }
};

int Run(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const MpiOptions options{.max_message_bytes = argc > 1 ? std::atoll(argv[1]) : 1 << 30};
  auto comm = CreateMpiCommunicator(&argc, &argv, options);
  if (!comm.ok()) {
    fprintf(stderr, "%s\n", comm.status().ToString().c_str());
    return 1;
  }
  const MpiLaunch launch = DetectMpiLaunch();
  if (launch.rank != (*comm)->rank() || launch.size != (*comm)->size()) {
    fprintf(stderr, "the environment says rank %d of %d, MPI rank %d of %d\n", launch.rank,
            launch.size, (*comm)->rank(), (*comm)->size());
    return 1;
  }
  for (const ConformanceRow& row : AllConformance()) {
    ::testing::RegisterTest(
        "MpiConformance", row.name, nullptr, nullptr, __FILE__, __LINE__,
        [comm = comm->get(), row]() -> ::testing::Test* { return new MpiConformance(comm, row); });
  }
  ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if ((*comm)->rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new PrintFailures);
  }
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace kvring

int main(int argc, char** argv) { return kvring::Run(argc, argv); }
