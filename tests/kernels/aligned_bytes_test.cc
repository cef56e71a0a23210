// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/aligned_bytes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

namespace kvring {
namespace {

struct Piece {
  int64_t bytes;
  uint8_t fill;
  AlignedBytes memory;
};

bool Holds(const Piece& piece) {
  for (int64_t i = 0; i < piece.bytes; ++i) {
    if (piece.memory[i] != piece.fill) return false;
  }
  return true;
}

// Sizes below and above a share of a chunk, several chunks of them; every third is freed on the way.
std::vector<Piece> MakePieces(uint8_t first) {
  std::vector<Piece> pieces;
  for (int i = 0; i < 60; ++i) {
    const int64_t bytes = i % 20 == 19 ? (int64_t{9} << 20) : 1 + int64_t{i} * 40'000;
    Piece piece{bytes, static_cast<uint8_t>(first + i), AllocateWeights(bytes)};
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece.memory.get()) % 64, 0u);
    std::memset(piece.memory.get(), piece.fill, static_cast<size_t>(bytes));
    pieces.push_back(std::move(piece));
    if (i % 3 == 2) pieces.erase(pieces.end() - 2);
  }
  return pieces;
}

TEST(AlignedBytes, WeightsKeepTheirOwnMemory) {
  std::vector<std::vector<Piece>> of_thread(3);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] { of_thread[t] = MakePieces(static_cast<uint8_t>(80 * t)); });
  for (std::thread& thread : threads) thread.join();
  of_thread[1].clear();
  for (const auto& pieces : of_thread) {
    for (const Piece& piece : pieces) EXPECT_TRUE(Holds(piece)) << piece.bytes;
  }
}

TEST(AlignedBytes, OwnershipMovesAndEnds) {
  AlignedBytes a = AllocateWeights(1000), b = AllocateAligned(1000);
  std::memset(a.get(), 7, 1000);
  std::memset(b.get(), 8, 1000);
  b = std::move(a);
  EXPECT_EQ(a, nullptr);
  EXPECT_EQ(b[999], 7);
  a = AllocateAligned(10);
  b.reset();
  EXPECT_EQ(b, nullptr);
}

}  // namespace
}  // namespace kvring
