// SPDX-License-Identifier: Apache-2.0
#include "kvstore/page_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

namespace kvring {
namespace {

using ::testing::HasSubstr;

TEST(PagePool, SlotsAreZeroedAlignedAndCounted) {
  PagePool pool(1 << 20);
  EXPECT_EQ(PagePool::SlotBytes(0), 64);
  EXPECT_EQ(PagePool::SlotBytes(64), 64);
  EXPECT_EQ(PagePool::SlotBytes(65), 128);
  for (int round = 0; round < 3; ++round) {
    PageRef slot = *pool.Allocate(100);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(slot.data()) % 64, 0u);
    EXPECT_EQ(slot.bytes(), 128);
    EXPECT_EQ(pool.bytes_in_use(), 128);
    EXPECT_TRUE(std::all_of(slot.data(), slot.data() + 128, [](uint8_t b) { return b == 0; }));
    std::memset(slot.data(), 0xff, 128);
  }
  EXPECT_EQ(pool.bytes_in_use(), 0);
  EXPECT_EQ(pool.peak_bytes(), 128);
}

TEST(PagePool, CopiesShareAndTheLastOneGivesBack) {
  PagePool pool(1 << 20);
  PageRef a = *pool.Allocate(64);
  EXPECT_TRUE(a.unique());
  PageRef b = a;
  EXPECT_FALSE(a.unique());
  EXPECT_EQ(a.data(), b.data());
  EXPECT_EQ(pool.bytes_in_use(), 64);
  a = PageRef();
  EXPECT_TRUE(b.unique());
  EXPECT_FALSE(a);
  EXPECT_EQ(a.bytes(), 0);
  b = PageRef();
  EXPECT_EQ(pool.bytes_in_use(), 0);
}

TEST(PagePool, LimitIsExactAndTheMessageSaysAll) {
  PagePool pool(64 * 10);
  std::vector<PageRef> slots;
  for (int i = 0; i < 10; ++i) slots.push_back(*pool.Allocate(64));
  const absl::Status status = pool.Allocate(1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("64 bytes asked for, 640 in use, limit 640"));
  slots.pop_back();
  EXPECT_TRUE(pool.Allocate(1).ok());
}

// Random lives of slots of mixed sizes: no two overlap, contents stay, the count is exact.
TEST(PagePool, RandomLivesDoNotDisturbEachOther) {
  PagePool pool(int64_t{1} << 30);
  std::mt19937 random(5);
  std::vector<std::pair<PageRef, uint8_t>> live;
  int64_t bytes = 0;
  for (int step = 0; step < 20000; ++step) {
    if (live.empty() || random() % 5 < 3) {
      const int64_t size = (random() % 3 == 0) ? 3 << 20 : 64 << (random() % 8);
      if (bytes + size > int64_t{200} << 20) continue;
      PageRef slot = *pool.Allocate(size);
      const uint8_t mark = static_cast<uint8_t>(1 + random() % 255);
      ASSERT_EQ(slot.data()[0], 0);
      ASSERT_EQ(slot.data()[size - 1], 0);
      slot.data()[0] = slot.data()[size - 1] = mark;
      bytes += size;
      live.emplace_back(std::move(slot), mark);
    } else {
      const size_t pick = random() % live.size();
      ASSERT_EQ(live[pick].first.data()[0], live[pick].second);
      ASSERT_EQ(live[pick].first.data()[live[pick].first.bytes() - 1], live[pick].second);
      bytes -= live[pick].first.bytes();
      std::swap(live[pick], live.back());
      live.pop_back();
    }
    ASSERT_EQ(pool.bytes_in_use(), bytes);
  }
  live.clear();
  EXPECT_EQ(pool.bytes_in_use(), 0);
}

TEST(PagePool, MovedAndAssignedReferencesCountOnce) {
  PagePool pool(1 << 20);
  PageRef a = *pool.Allocate(64), b = *pool.Allocate(64);
  uint8_t* const data = a.data();
  PageRef moved = std::move(a);
  EXPECT_EQ(moved.data(), data);
  EXPECT_TRUE(moved.unique());
  b = moved;  // gives back what b held
  EXPECT_EQ(pool.bytes_in_use(), 64);
  PageRef& same = b;
  b = same;
  EXPECT_EQ(b.data(), data);
  b = PageRef();
  EXPECT_TRUE(moved.unique());
  EXPECT_EQ(*pool.Allocate(64)->data(), 0);
}

// Beyond the threshold slots come from huge slabs: aligned, zeroed also when they are used again, counted alike.
TEST(PagePool, LargePoolsAskForHugePages) {
  PagePoolOptions options;
  options.limit_bytes = int64_t{1} << 30;
  options.huge_from_bytes = 4 << 20;
  PagePool pool(options);
  std::vector<PageRef> slots;
  const int64_t slot_bytes = 3200;
  while (pool.bytes_in_use() < options.huge_from_bytes) slots.push_back(*pool.Allocate(slot_bytes));
  EXPECT_EQ(pool.huge_bytes(), 0);
  const size_t small = slots.size();
  for (int i = 0; i < 3000; ++i) {
    slots.push_back(*pool.Allocate(slot_bytes));
    EXPECT_EQ(slots.back().data()[0] | slots.back().data()[slot_bytes - 1], 0);
    std::memset(slots.back().data(), 0xff, slot_bytes);
  }
  EXPECT_EQ(pool.bytes_in_use(), static_cast<int64_t>(slots.size()) * slot_bytes);
  // 655 slots of 3200 bytes to 2 MiB; the rest of the last small slab took at most 327 of the 3000.
  EXPECT_GE(pool.huge_bytes(), int64_t{5} * (2 << 20));
  EXPECT_EQ(pool.huge_bytes() % (2 << 20), 0);
  slots.resize(small);
  EXPECT_EQ(pool.bytes_in_use(), static_cast<int64_t>(small) * slot_bytes);
  EXPECT_LE(pool.huge_bytes(), 2 << 20) << "at most one empty slab is kept";
  slots.push_back(*pool.Allocate(slot_bytes));
  EXPECT_EQ(slots.back().data()[7], 0);
  slots.clear();
  EXPECT_EQ(pool.bytes_in_use(), 0);
}

TEST(PagePool, HugePagesCanBeSwitchedOff) {
  PagePoolOptions options;
  options.limit_bytes = int64_t{1} << 30;
  options.huge_pages = false;
  options.huge_from_bytes = 0;
  PagePool pool(options);
  std::vector<PageRef> slots;
  for (int i = 0; i < 2000; ++i) slots.push_back(*pool.Allocate(3200));
  EXPECT_EQ(pool.huge_bytes(), 0);
  // The same pool with the switch on asks at once; slots larger than a huge page have slabs that hold them.
  options.huge_pages = true;
  PagePool huge(options);
  const PageRef large = *huge.Allocate((3 << 20) + 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large.data()) % (2 << 20), 0u);
  EXPECT_GE(huge.huge_bytes(), large.bytes());
  large.data()[large.bytes() - 1] = 1;
}

// A step that frees everything and takes it again finds the same memory.
TEST(PagePool, OneEmptySlabIsKept) {
  PagePool pool(int64_t{1} << 30);
  PageRef slot = *pool.Allocate(64);
  uint8_t* const data = slot.data();
  for (int round = 0; round < 3; ++round) {
    *data = 1;
    slot = PageRef();
    slot = *pool.Allocate(64);
    EXPECT_EQ(slot.data(), data);
    EXPECT_EQ(*data, 0);
  }
}

TEST(PagePool, ManyThreads) {
  PagePool pool(int64_t{1} << 30);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      std::vector<PageRef> own;
      for (int i = 0; i < 2000; ++i) {
        own.push_back(*pool.Allocate(64 * (1 + (i + t) % 3)));
        *own.back().data() = static_cast<uint8_t>(t + 1);
        if (i % 3 == 0) own.erase(own.begin() + own.size() / 2);
      }
      for (const PageRef& slot : own) ASSERT_EQ(*slot.data(), t + 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.bytes_in_use(), 0);
}

}  // namespace
}  // namespace kvring
