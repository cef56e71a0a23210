// SPDX-License-Identifier: Apache-2.0
#include "kvstore/page_pool.h"

#include <sys/mman.h>

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
constexpr int64_t kHugePage = int64_t{2} << 20;  // of x86-64 and, with 4 KiB pages, arm64
constexpr int64_t kLargestHugeSlab = int64_t{8} << 20;

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

// Whole huge pages of which a rest too small for a slot is at most a 32nd, unless slots are larger than that.
int64_t HugeSlabBytes(int64_t slot_bytes) {
  int64_t bytes = (slot_bytes + kHugePage - 1) / kHugePage * kHugePage;
  while (bytes % slot_bytes > bytes / 32 && bytes < kLargestHugeSlab) bytes += kHugePage;
  return bytes;
}

// Fresh zeroed memory that takes no space before it is touched: calloc of large sizes maps fresh pages.
class SmallPages {
 public:
  explicit SmallPages(int64_t bytes)
      : memory_(static_cast<uint8_t*>(std::calloc(1, static_cast<size_t>(bytes + kAlignment)))) {}
  ~SmallPages() { std::free(memory_); }
  SmallPages(const SmallPages&) = delete;
  SmallPages& operator=(const SmallPages&) = delete;
  uint8_t* begin() const {
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory_);
    return memory_ == nullptr ? nullptr
                              : memory_ + (kAlignment - address % kAlignment) % kAlignment;
  }

 private:
  uint8_t* memory_;
};

// The same, aligned to huge pages and meant for them.
class HugePages {
 public:
  explicit HugePages(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    const size_t room = bytes_ + kHugePage;
    void* const memory =
        mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    uint8_t* const all = static_cast<uint8_t*>(memory);
    const size_t before =
        static_cast<size_t>((kHugePage - reinterpret_cast<uintptr_t>(all) % kHugePage) % kHugePage);
    begin_ = all + before;
    if (before > 0) munmap(all, before);
    munmap(begin_ + bytes_, room - before - bytes_);
    madvise(begin_, bytes_,
            MADV_HUGEPAGE);  // a system without them answers with an error and small pages
  }
  ~HugePages() {
    if (begin_ != nullptr) munmap(begin_, bytes_);
  }
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;
  uint8_t* begin() const { return begin_; }

 private:
  uint8_t* begin_ = nullptr;
  size_t bytes_;
};

}  // namespace

// Memory of slots of one size.
struct PageSlab {
  PageSlab(PagePool* pool, int64_t slot_bytes, int64_t bytes, bool huge)
      : pool(pool),
        slot_bytes(slot_bytes),
        bytes(bytes),
        slots(static_cast<int32_t>(bytes / slot_bytes)) {
    if (huge) {
      huge_pages = std::make_unique<HugePages>(bytes);
      begin = huge_pages->begin();
    } else {
      small_pages = std::make_unique<SmallPages>(bytes);
      begin = small_pages->begin();
    }
    if (begin == nullptr) return;
    table = std::make_unique<PageSlot[]>(static_cast<size_t>(slots));
    Poison(begin, slot_bytes * slots);
  }
  ~PageSlab() {
    if (begin != nullptr) Unpoison(begin, slot_bytes * slots);
  }

  uint8_t* Data(const PageSlot* slot) const { return begin + (slot - table.get()) * slot_bytes; }
  bool Full() const { return in_use == slots; }
  PageSlot* Take() {
    ++in_use;
    const bool used_before = free >= 0;
    PageSlot* const slot = table.get() + (used_before ? free : fresh);
    uint8_t* const data = Data(slot);
    Unpoison(data, slot_bytes);
    if (used_before) {
      free = slot->next_free;
      std::memset(data, 0, static_cast<size_t>(slot_bytes));
    } else {
      ++fresh;
    }
    slot->slab = this;
    slot->owners.store(1, std::memory_order_relaxed);
    return slot;
  }
  void Give(PageSlot* slot) {
    Poison(Data(slot), slot_bytes);
    slot->next_free = free;
    free = static_cast<int32_t>(slot - table.get());
    --in_use;
  }

  PagePool* pool;
  int64_t slot_bytes, bytes;
  int32_t slots, in_use = 0;
  int32_t fresh = 0;  // slots from here on were never used
  int32_t free = -1;  // the slot that was given back last
  std::unique_ptr<SmallPages> small_pages;
  std::unique_ptr<HugePages> huge_pages;
  uint8_t* begin = nullptr;
  std::unique_ptr<PageSlot[]> table;
};

// All slots of one size. `open` holds the slabs with room: the lowest address is filled first, so that others empty.
struct PagePool::SizeClass {
  std::map<uint8_t*, std::unique_ptr<PageSlab>> slabs;  // by begin
  std::map<uint8_t*, PageSlab*> open;
  PageSlab* empty = nullptr;  // at most one, which is kept
  int64_t in_use = 0;         // bytes
};

int64_t PageRef::bytes() const { return slot_ == nullptr ? 0 : slot_->slab->slot_bytes; }

void PageRef::GiveBack() { slot_->slab->pool->Free(slot_); }

PagePool::PagePool(const PagePoolOptions& options) : options_(options) {}

PagePool::~PagePool() = default;

int64_t PagePool::SlotBytes(int64_t bytes) {
  return (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

// A slab of the class with room for a slot, new if there is none.
absl::StatusOr<PageSlab*> PagePool::OpenSlab(SizeClass& size_class, int64_t slot_bytes) {
  if (!size_class.open.empty()) return size_class.open.begin()->second;
  const bool huge = options_.huge_pages && size_class.in_use >= options_.huge_from_bytes;
  const int64_t bytes =
      huge ? HugeSlabBytes(slot_bytes) : std::max(slot_bytes, kSlabBytes / slot_bytes * slot_bytes);
  auto slab = std::make_unique<PageSlab>(this, slot_bytes, bytes, huge);
  if (slab->begin == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("KV pool: the system has no ", bytes, " bytes more, ", in_use_, " in use"));
  }
  if (huge) huge_ += bytes;
  PageSlab* const opened = slab.get();
  size_class.open[opened->begin] = opened;
  size_class.slabs[opened->begin] = std::move(slab);
  return opened;
}

absl::StatusOr<PageRef> PagePool::Allocate(int64_t bytes) {
  const int64_t slot_bytes = SlotBytes(bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  if (slot_bytes > options_.limit_bytes - in_use_) {
    return absl::ResourceExhaustedError(absl::StrCat("KV pool: ", slot_bytes, " bytes asked for, ",
                                                     in_use_, " in use, limit ",
                                                     options_.limit_bytes));
  }
  std::unique_ptr<SizeClass>& size_class = classes_[slot_bytes];
  if (!size_class) size_class = std::make_unique<SizeClass>();
  KVRING_ASSIGN_OR_RETURN(PageSlab* const slab, OpenSlab(*size_class, slot_bytes));
  PageRef ref;
  ref.slot_ = slab->Take();
  ref.data_ = slab->Data(ref.slot_);
  if (slab == size_class->empty) size_class->empty = nullptr;
  if (slab->Full()) size_class->open.erase(slab->begin);
  size_class->in_use += slot_bytes;
  in_use_ += slot_bytes;
  peak_ = std::max(peak_, in_use_);
  return ref;
}

void PagePool::Free(PageSlot* slot) {
  std::lock_guard<std::mutex> lock(mutex_);
  PageSlab* slab = slot->slab;
  SizeClass& size_class = *classes_.at(slab->slot_bytes);
  if (slab->Full()) size_class.open[slab->begin] = slab;
  slab->Give(slot);
  size_class.in_use -= slab->slot_bytes;
  in_use_ -= slab->slot_bytes;
  if (slab->in_use > 0) return;
  if (size_class.empty == nullptr) {
    size_class.empty = slab;
    return;
  }
  // Of two empty slabs the higher one goes.
  if (size_class.empty->begin > slab->begin) std::swap(size_class.empty, slab);
  if (slab->huge_pages) huge_ -= slab->bytes;
  size_class.open.erase(slab->begin);
  size_class.slabs.erase(slab->begin);
}

int64_t PagePool::bytes_in_use() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return in_use_;
}

int64_t PagePool::peak_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return peak_;
}

int64_t PagePool::huge_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return huge_;
}

}  // namespace kvring
