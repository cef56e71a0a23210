// SPDX-License-Identifier: Apache-2.0
#include "kvstore/page_pool.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace kvring {
namespace {

constexpr int64_t kAlignment = 64;  // a cache line, and the widest vector
constexpr int64_t kSlabBytes =
    1 << 20;  // little enough that an unused rest does not show in the process's size

// A freed slot must not be read: the sanitizer sees it, other builds leave it as it is.
void Poison(uint8_t* data, int64_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(data, static_cast<size_t>(bytes));
#endif
}

void Unpoison(uint8_t* data, int64_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(data, static_cast<size_t>(bytes));
#endif
}

// Zeroed memory that takes no space before it is touched (calloc of large sizes maps fresh pages).
struct Slab {
  Slab(int64_t slot_bytes, int64_t slots)
      : memory(static_cast<uint8_t*>(std::calloc(1, slot_bytes * slots + kAlignment))),
        slots(slots),
        slot_bytes(slot_bytes) {
    if (memory == nullptr) return;
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
    begin = memory + (kAlignment - address % kAlignment) % kAlignment;
    Poison(begin, slot_bytes * slots);
  }
  ~Slab() {
    if (memory != nullptr) Unpoison(begin, slot_bytes * slots);
    std::free(memory);
  }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  bool Full() const { return in_use == slots; }
  uint8_t* Take() {
    ++in_use;
    if (free.empty()) {
      uint8_t* slot = begin + fresh++ * slot_bytes;
      Unpoison(slot, slot_bytes);
      return slot;
    }
    uint8_t* slot = free.back();
    free.pop_back();
    Unpoison(slot, slot_bytes);
    std::memset(slot, 0, slot_bytes);
    return slot;
  }
  void Give(uint8_t* slot) {
    Poison(slot, slot_bytes);
    free.push_back(slot);
    --in_use;
  }

  uint8_t* memory;
  uint8_t* begin = nullptr;
  int64_t slots, slot_bytes, in_use = 0, fresh = 0;  // slots from `fresh` on were never used
  std::vector<uint8_t*> free;
};

}  // namespace

// All slots of one size. `open` holds the slabs with room: the lowest address is filled first, so that others empty.
struct PagePool::SizeClass {
  std::map<uint8_t*, std::unique_ptr<Slab>> slabs;  // by begin
  std::map<uint8_t*, Slab*> open;
};

PageRef::Slot::~Slot() { pool->Free(data, bytes); }

PagePool::PagePool(int64_t limit_bytes) : limit_(limit_bytes) {}

PagePool::~PagePool() = default;

int64_t PagePool::SlotBytes(int64_t bytes) {
  return (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

absl::StatusOr<PageRef> PagePool::Allocate(int64_t bytes) {
  const int64_t slot_bytes = SlotBytes(bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  if (slot_bytes > limit_ - in_use_) {
    return absl::ResourceExhaustedError(absl::StrCat("KV pool: ", slot_bytes, " bytes asked for, ",
                                                     in_use_, " in use, limit ", limit_));
  }
  std::unique_ptr<SizeClass>& size_class = classes_[slot_bytes];
  if (!size_class) size_class = std::make_unique<SizeClass>();
  if (size_class->open.empty()) {
    const int64_t slots = std::max<int64_t>(1, kSlabBytes / slot_bytes);
    auto slab = std::make_unique<Slab>(slot_bytes, slots);
    if (slab->memory == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "KV pool: the system has no ", slot_bytes * slots, " bytes more, ", in_use_, " in use"));
    }
    size_class->open[slab->begin] = slab.get();
    size_class->slabs[slab->begin] = std::move(slab);
  }
  Slab* slab = size_class->open.begin()->second;
  PageRef ref;
  ref.slot_ = std::make_shared<PageRef::Slot>();
  ref.slot_->pool = this;
  ref.slot_->data = slab->Take();
  ref.slot_->bytes = slot_bytes;
  if (slab->Full()) size_class->open.erase(slab->begin);
  in_use_ += slot_bytes;
  peak_ = std::max(peak_, in_use_);
  return ref;
}

void PagePool::Free(uint8_t* data, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  SizeClass& size_class = *classes_.at(bytes);
  const auto found = std::prev(size_class.slabs.upper_bound(data));
  Slab* slab = found->second.get();
  slab->Give(data);
  in_use_ -= bytes;
  if (slab->in_use == 0) {
    size_class.open.erase(slab->begin);
    size_class.slabs.erase(found);
  } else {
    size_class.open[slab->begin] = slab;
  }
}

int64_t PagePool::bytes_in_use() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return in_use_;
}

int64_t PagePool::peak_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return peak_;
}

}  // namespace kvring
