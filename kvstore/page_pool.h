// SPDX-License-Identifier: Apache-2.0
// Memory for pages: slots of a few fixed sizes, cut from large slabs, counted exactly, shared by reference (fork).
// A slot's address never changes while it lives. Thread-safe.
//
// Slabs come from the system zeroed and untouched. Once the slots of one size take `huge_from_bytes`, further slabs of that size
// are made of huge pages, where the system gives them: attention over a long context walks through more memory than
// the processor keeps translations for. Shorter contexts stay on small pages, so that at most one huge page per size is
// resident without being used.
// Taking and giving back a slot needs no memory of its own (references are counted in a table that comes with the slab), and
// one empty slab of each size is kept: a step that frees all its exact rows and needs as many again does not go through
// the system.
// Memory nodes: the pool writes to no fresh slot, so a page lands on the node of the thread that writes it first, which is one of
// the rank's own. Ranks bound to a node each therefore read their own memory; nothing is moved or interleaved.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/base/status.h"

namespace kvring {

class PagePool;
struct PageSlab;

// What the pool knows of one slot. kvstore's own.
struct PageSlot {
  std::atomic<int32_t> owners{0};
  int32_t next_free = -1;  // index within the slab, of a slot that was given back before this one
  PageSlab* slab = nullptr;
};

// One slot, shared: copies are cheap and count references; the last one gives the slot back.
class PageRef {
 public:
  PageRef() = default;
  PageRef(const PageRef& other) : data_(other.data_), slot_(other.slot_) {
    if (slot_ != nullptr) slot_->owners.fetch_add(1, std::memory_order_relaxed);
  }
  PageRef(PageRef&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), slot_(std::exchange(other.slot_, nullptr)) {}
  PageRef& operator=(PageRef other) noexcept {
    std::swap(data_, other.data_);
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~PageRef() {
    if (slot_ != nullptr && slot_->owners.fetch_sub(1, std::memory_order_acq_rel) == 1) GiveBack();
  }

  uint8_t* data() const { return data_; }
  int64_t bytes() const;
  bool unique() const {
    return slot_ != nullptr && slot_->owners.load(std::memory_order_acquire) == 1;
  }
  explicit operator bool() const { return slot_ != nullptr; }

 private:
  friend class PagePool;
  void GiveBack();
  uint8_t* data_ =
      nullptr;  // here and not in the slot: attention finds a page without reading the slot
  PageSlot* slot_ = nullptr;
};

struct PagePoolOptions {
  int64_t limit_bytes = 0;  // that all slots in use may take together
  bool huge_pages = true;
  int64_t huge_from_bytes = int64_t{16} << 20;  // in use by slots of one size
};

class PagePool {
 public:
  explicit PagePool(const PagePoolOptions& options);
  explicit PagePool(int64_t limit_bytes) : PagePool(PagePoolOptions{.limit_bytes = limit_bytes}) {}
  ~PagePool();  // after all of its slots
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  // A zeroed slot. RESOURCE_EXHAUSTED names what was asked, what is in use and the limit.
  absl::StatusOr<PageRef> Allocate(int64_t bytes);
  int64_t bytes_in_use() const;  // sum of the sizes of live slots
  int64_t peak_bytes() const;
  int64_t limit_bytes() const { return options_.limit_bytes; }
  int64_t huge_bytes()
      const;  // of slabs that asked for huge pages; what of them the system gave is not known here

  // What one slot of `bytes` really takes: rounded up to the pool's alignment (64). KvBytes counts with it.
  static int64_t SlotBytes(int64_t bytes);

 private:
  friend class PageRef;
  void Free(PageSlot* slot);
  struct SizeClass;
  absl::StatusOr<PageSlab*> OpenSlab(SizeClass& size_class, int64_t slot_bytes);
  mutable std::mutex mutex_;
  std::map<int64_t, std::unique_ptr<SizeClass>> classes_;  // by size of a slot
  const PagePoolOptions options_;
  int64_t in_use_ = 0, peak_ = 0, huge_ = 0;
};

}  // namespace kvring
