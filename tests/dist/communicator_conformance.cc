// SPDX-License-Identifier: Apache-2.0
#include "tests/dist/communicator_conformance.h"

#include <numeric>

#include "absl/time/clock.h"
#include "tests/support/rank_harness.h"

namespace kvring {
namespace {

// A number that depends on everything that could be mixed up: who sends it, to whom, where in the part, which round.
uint32_t Word(int from, int to, int64_t index, int round) {
  uint64_t x = static_cast<uint64_t>(from) * 1000003u + static_cast<uint64_t>(to) * 10007u +
               static_cast<uint64_t>(index) * 2654435761u + static_cast<uint64_t>(round) * 97u;
  x ^= x >> 29;
  return static_cast<uint32_t>(x * 0x9E3779B97F4A7C15ull >> 32);
}

std::vector<uint32_t> Part(int from, int to, int64_t words, int round) {
  std::vector<uint32_t> part(words);
  for (int64_t i = 0; i < words; ++i) part[i] = Word(from, to, i, round);
  return part;
}

absl::Status Expect(bool right, const char* what, const Communicator& comm, int round) {
  if (right) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": wrong data on rank ", comm.rank(), " of ",
                                          comm.size(), ", round ", round));
}

int64_t Total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

std::vector<int64_t> Bytes(std::vector<int64_t> words) {
  for (int64_t& count : words) count *= sizeof(uint32_t);
  return words;
}

// Part sizes in words: uneven, with zeros, never the same for both directions.
int64_t Uneven(int from, int to, int round) { return (from * 7 + to * 3 + round * 5) % 11 * 13; }

using SizeOf = int64_t (*)(int from, int to, int round);

absl::Status GatherOnce(Communicator& comm, SizeOf size, int round) {
  const int n = comm.size(), rank = comm.rank();
  std::vector<int64_t> words(n);
  for (int r = 0; r < n; ++r) words[r] = size(r, 0, round);
  const std::vector<uint32_t> own = Part(rank, 0, words[rank], round);
  std::vector<uint32_t> all(Total(words));
  KVRING_RETURN_IF_ERROR(comm.AllGatherV(own.data(), own.size() * sizeof(uint32_t), all.data(),
                                         Bytes(words), TestDeadline()));
  std::vector<uint32_t> expected;
  for (int r = 0; r < n; ++r) {
    const std::vector<uint32_t> part = Part(r, 0, words[r], round);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  return Expect(all == expected, "all-gather", comm, round);
}

absl::Status ExchangeOnce(Communicator& comm, SizeOf size, int round) {
  const int n = comm.size(), rank = comm.rank();
  std::vector<int64_t> sends(n), receives(n);
  std::vector<uint32_t> out, expected;
  for (int r = 0; r < n; ++r) {
    sends[r] = size(rank, r, round);
    receives[r] = size(r, rank, round);
    const std::vector<uint32_t> mine = Part(rank, r, sends[r], round);
    const std::vector<uint32_t> theirs = Part(r, rank, receives[r], round);
    out.insert(out.end(), mine.begin(), mine.end());
    expected.insert(expected.end(), theirs.begin(), theirs.end());
  }
  std::vector<uint32_t> in(expected.size());
  KVRING_RETURN_IF_ERROR(
      comm.AllToAllV(out.data(), Bytes(sends), in.data(), Bytes(receives), TestDeadline()));
  return Expect(in == expected, "all-to-all", comm, round);
}

absl::Status RingOnce(Communicator& comm, int64_t words, int round) {
  const int n = comm.size(), rank = comm.rank();
  const int right = (rank + 1) % n, left = (rank + n - 1) % n;
  const std::vector<uint32_t> out = Part(rank, right, words, round);
  std::vector<uint32_t> in(words);
  const int64_t bytes = words * static_cast<int64_t>(sizeof(uint32_t));
  KVRING_RETURN_IF_ERROR(
      comm.SendRecv(right, out.data(), bytes, left, in.data(), bytes, TestDeadline()));
  return Expect(in == Part(left, rank, words, round), "send-receive", comm, round);
}

absl::Status BroadcastOnce(Communicator& comm, int root, int64_t words, int round) {
  std::vector<uint32_t> data(words);
  if (comm.rank() == root) data = Part(root, 0, words, round);
  KVRING_RETURN_IF_ERROR(
      comm.Broadcast(root, data.data(), words * sizeof(uint32_t), TestDeadline()));
  return Expect(data == Part(root, 0, words, round), "broadcast", comm, round);
}

absl::Status TestBarrier(Communicator& comm) {
  for (int i = 0; i < 50; ++i) KVRING_RETURN_IF_ERROR(comm.Barrier(TestDeadline()));
  return absl::OkStatus();
}

absl::Status TestBroadcast(Communicator& comm) {
  for (int root = 0; root < comm.size(); ++root)
    for (int64_t words : {0, 1, 1000, 100000})
      KVRING_RETURN_IF_ERROR(BroadcastOnce(comm, root, words, root));
  for (const std::string& text : {std::string(), std::string("plan"), std::string(70000, 'x')}) {
    std::string data = comm.rank() == 0 ? text : "what was here before";
    KVRING_RETURN_IF_ERROR(comm.BroadcastString(0, data, TestDeadline()));
    KVRING_RETURN_IF_ERROR(Expect(data == text, "broadcast of a string", comm, 0));
  }
  return absl::OkStatus();
}

absl::Status TestGather(Communicator& comm) {
  for (int round = 0; round < 12; ++round) {
    KVRING_RETURN_IF_ERROR(GatherOnce(comm, Uneven, round));
    KVRING_RETURN_IF_ERROR(GatherOnce(
        comm, [](int, int, int) { return int64_t{0}; }, round));
    // One rank alone has something to say.
    KVRING_RETURN_IF_ERROR(GatherOnce(
        comm, [](int r, int, int i) { return int64_t{r == i % 3 ? 5000 : 0}; }, round));
  }
  return absl::OkStatus();
}

absl::Status TestExchange(Communicator& comm) {
  for (int round = 0; round < 12; ++round) {
    KVRING_RETURN_IF_ERROR(ExchangeOnce(comm, Uneven, round));
    KVRING_RETURN_IF_ERROR(ExchangeOnce(
        comm, [](int, int, int) { return int64_t{0}; }, round));
    KVRING_RETURN_IF_ERROR(ExchangeOnce(
        comm, [](int from, int, int) { return int64_t{from == 0 ? 9999 : 0}; }, round));
  }
  return absl::OkStatus();
}

// F18: the sizes around which transports change their ways.
absl::Status TestRing(Communicator& comm) {
  int round = 0;
  for (int64_t bytes : {0, 4, 1 << 10, 4 << 10, 64 << 10, 8 << 20})
    KVRING_RETURN_IF_ERROR(RingOnce(comm, bytes / 4, ++round));
  return absl::OkStatus();
}

absl::Status TestLarge(Communicator& comm) {
  KVRING_RETURN_IF_ERROR(RingOnce(comm, (64 << 20) / 4, 1));
  return BroadcastOnce(comm, comm.size() - 1, (16 << 20) / 4, 2);
}

// Posts everything of several operations before it waits for any, then waits in another order than it posted.
absl::Status TestTwoInTurn(Communicator& comm) {
  constexpr int kOps = 6;
  const int n = comm.size(), rank = comm.rank(), right = (rank + 1) % n, left = (rank + n - 1) % n;
  std::vector<std::vector<uint32_t>> out(kOps), in(kOps);
  std::vector<std::unique_ptr<Pending>> pending(kOps);
  for (int i = 0; i < kOps; ++i) {
    const int64_t words = i % 2 == 0 ? 60000 : 300;
    out[i] = Part(rank, right, words, i);
    in[i].resize(words);
    CommOp op{.kind = CommKind::kSendRecv, .send = out[i].data(), .recv = in[i].data()};
    op.send_bytes = op.recv_bytes = {words * static_cast<int64_t>(sizeof(uint32_t))};
    op.to = right;
    op.from = left;
    KVRING_ASSIGN_OR_RETURN(pending[i], comm.Post(op));
  }
  for (int i : {3, 0, 5, 1, 4, 2}) {
    if ((rank + i) % 2 == 0) {  // some ranks poll, some wait
      KVRING_RETURN_IF_ERROR(pending[i]->Poll().status());
    }
    KVRING_RETURN_IF_ERROR(pending[i]->Wait(TestDeadline()));
    KVRING_RETURN_IF_ERROR(
        Expect(in[i] == Part(left, rank, in[i].size(), i), "two in turn", comm, i));
  }
  return absl::OkStatus();
}

// One rank comes late to every operation; the others wait asleep.
absl::Status TestLateRank(Communicator& comm) {
  for (int round = 0; round < 8; ++round) {
    if (round % comm.size() == comm.rank()) absl::SleepFor(absl::Milliseconds(20));
    KVRING_RETURN_IF_ERROR(GatherOnce(comm, Uneven, round));
    KVRING_RETURN_IF_ERROR(ExchangeOnce(comm, Uneven, round));
  }
  return absl::OkStatus();
}

absl::Status TestTraffic(Communicator& comm) {
  const int n = comm.size(), rank = comm.rank();
  const CommTraffic before = comm.traffic();
  KVRING_RETURN_IF_ERROR(GatherOnce(comm, Uneven, 1));
  KVRING_RETURN_IF_ERROR(ExchangeOnce(comm, Uneven, 2));
  KVRING_RETURN_IF_ERROR(BroadcastOnce(comm, 0, 10, 3));
  KVRING_RETURN_IF_ERROR(RingOnce(comm, 7, 4));
  KVRING_RETURN_IF_ERROR(comm.Barrier(TestDeadline()));
  int64_t words = (n - 1) * Uneven(rank, 0, 1) + (rank == 0 ? (n - 1) * 10 : 0) + (n > 1 ? 7 : 0);
  for (int r = 0; r < n; ++r)
    if (r != rank) words += Uneven(rank, r, 2);
  const bool bytes = comm.traffic().bytes_sent - before.bytes_sent == words * 4;
  return Expect(bytes && comm.traffic().operations - before.operations == 5, "traffic", comm, 0);
}

constexpr ConformanceRow kRows[] = {
    {"Barrier", TestBarrier},     {"Broadcast", TestBroadcast}, {"AllGatherV", TestGather},
    {"AllToAllV", TestExchange},  {"F18Ring", TestRing},        {"Large", TestLarge},
    {"TwoInTurn", TestTwoInTurn}, {"LateRank", TestLateRank},   {"Traffic", TestTraffic},
};

}  // namespace

std::span<const ConformanceRow> AllConformance() { return kRows; }

}  // namespace kvring
