// SPDX-License-Identifier: Apache-2.0
#include "dist/inproc_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "absl/time/clock.h"
#include "dist/communicator_registry.h"
#include "tests/dist/communicator_conformance.h"
#include "tests/support/rank_harness.h"

namespace kvring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

class Conformance : public ::testing::TestWithParam<std::tuple<int, ConformanceRow>> {};

TEST_P(Conformance, Holds) {
  const auto& [ranks, row] = GetParam();
  for (const absl::Status& status : RunRanks(ranks, row.body)) EXPECT_TRUE(status.ok()) << status;
}

INSTANTIATE_TEST_SUITE_P(Inproc, Conformance,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5, 7, 8),
                                            ::testing::ValuesIn(AllConformance().begin(),
                                                                AllConformance().end())),
                         [](const auto& info) {
                           return absl::StrCat(std::get<1>(info.param).name, "On",
                                               std::get<0>(info.param));
                         });

absl::Status GatherInt(Communicator& comm, Deadline deadline) {
  const int own = comm.rank();
  std::vector<int> all(comm.size());
  const std::vector<int64_t> bytes(comm.size(), sizeof(int));
  return comm.AllGatherV(&own, sizeof(own), all.data(), bytes, deadline);
}

TEST(InprocCommunicator, DeadlineNamesOperationAndMissingRank) {
  const absl::Time start = absl::Now();
  const auto results = RunRanks(3, [](Communicator& comm) {
    KVRING_RETURN_IF_ERROR(comm.Barrier(TestDeadline()));
    if (comm.rank() == 1) absl::SleepFor(absl::Milliseconds(400));  // a stopped rank
    return GatherInt(comm, absl::Now() + absl::Milliseconds(100));
  });
  // Far from the sleeper's end plus any waiting: 5 s only says that nobody waited for the 60 s of the barrier.
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(Text(status), AllOf(HasSubstr("all-gather number 1"), HasSubstr("rank 1")));
    EXPECT_EQ(status, results[0]) << "the first error is everyone's";
  }
}

TEST(InprocCommunicator, FirstErrorAnswersEveryLaterCall) {
  for (const absl::Status& status : RunRanks(2, [](Communicator& comm) {
         comm.Abort(absl::CancelledError("first"));
         comm.Abort(absl::DataLossError("second"));
         EXPECT_EQ(comm.Barrier(TestDeadline()), comm.status());
         EXPECT_EQ(GatherInt(comm, TestDeadline()), comm.status());
         return comm.status();
       })) {
    EXPECT_EQ(status, absl::CancelledError("first"));
  }
}

TEST(InprocCommunicator, AbortFromAnotherThreadWakesEveryone) {
  auto comms = MakeInprocCommunicators(4);
  std::vector<absl::Status> results(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] { results[rank] = comms[rank]->Barrier(TestDeadline()); });
  }
  absl::SleepFor(absl::Milliseconds(50));
  const absl::Time aborted = absl::Now();
  comms[3]->Abort(absl::CancelledError("enough"));
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(absl::Now() - aborted, absl::Seconds(5)) << "woken, not timed out after 60 s";
  for (const absl::Status& status : results) EXPECT_EQ(status, absl::CancelledError("enough"));
}

TEST(InprocCommunicator, F02DeadPeerEndsTheWait) {
  for (int dead = 0; dead < 4; ++dead) {
    const auto results = RunRanks(4, [dead](Communicator& comm) {
      KVRING_RETURN_IF_ERROR(comm.Barrier(TestDeadline()));
      if (comm.rank() == dead) return absl::OkStatus();
      return GatherInt(comm, TestDeadline());
    });
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == dead) continue;
      EXPECT_EQ(results[rank].code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(Text(results[rank]), HasSubstr(absl::StrCat("rank ", dead, " left")));
    }
  }
}

TEST(InprocCommunicator, LeavingAfterTheLastOperationIsNoFault) {
  const auto results = RunRanks(4, [](Communicator& comm) {
    KVRING_RETURN_IF_ERROR(GatherInt(comm, TestDeadline()));
    absl::SleepFor(absl::Milliseconds(20 * comm.rank()));
    return comm.status();
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

TEST(InprocCommunicator, MismatchedOperationsNameBothKinds) {
  for (const absl::Status& status : RunRanks(3, [](Communicator& comm) {
         return comm.rank() == 2 ? GatherInt(comm, TestDeadline()) : comm.Barrier(TestDeadline());
       })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(Text(status), AllOf(HasSubstr("barrier"), HasSubstr("all-gather")));
  }
}

TEST(InprocCommunicator, MismatchedCountsAreFound) {
  for (const absl::Status& status : RunRanks(2, [](Communicator& comm) {
         std::vector<char> out(8), in(16);
         const std::vector<int64_t> bytes = {8, comm.rank() == 0 ? 4 : 8};  // rank 1 sends 8
         return comm.AllGatherV(out.data(), 8, in.data(), bytes, TestDeadline());
       })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(Text(status), HasSubstr("byte counts"));
  }
}

TEST(InprocCommunicator, DroppedPendingAborts) {
  // Rank 1 comes when rank 0 has dropped its own: had it come first, that barrier would be complete and free to drop.
  std::latch dropped(1);
  for (const absl::Status& status : RunRanks(2, [&dropped](Communicator& comm) {
         if (comm.rank() == 0) {
           comm.Post(CommOp{}).value().reset();
           dropped.count_down();
         } else {
           dropped.wait();
         }
         return comm.Barrier(TestDeadline());
       })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(Text(status), HasSubstr("dropped barrier number 0"));
  }
}

TEST(InprocCommunicator, WaitsWithoutEndAreRefused) {
  auto comms = MakeInprocCommunicators(1);
  EXPECT_EQ(comms[0]->Barrier(absl::InfiniteFuture()).code(), absl::StatusCode::kInvalidArgument);
}

TEST(InprocCommunicator, BadArgumentsAreRefused) {
  auto comms = MakeInprocCommunicators(1);
  int data = 0;
  EXPECT_EQ(comms[0]->Broadcast(1, &data, sizeof(data), TestDeadline()).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CommunicatorRegistry, FindsByNameAndListsWhatExists) {
  const auto inproc = FindCommunicator("inproc");
  ASSERT_TRUE(inproc.ok());
  EXPECT_EQ((*inproc)->make({.ranks = 3}).value().size(), 3u);
  EXPECT_EQ((*inproc)->make({.ranks = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  const auto none = FindCommunicator("smoke signals");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Text(none.status()), AllOf(HasSubstr("inproc"), HasSubstr("mpi")));
}

TEST(CommunicatorRegistry, MpiWithoutALauncherIsOneRank) {
  const auto mpi = FindCommunicator("mpi");
  ASSERT_TRUE(mpi.ok());
  auto ranks = (*mpi)->make({});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  ASSERT_EQ(ranks->size(), 1u);
  EXPECT_EQ((*ranks)[0]->size(), 1);
  EXPECT_TRUE((*ranks)[0]->Barrier(TestDeadline()).ok());
}

}  // namespace
}  // namespace kvring
