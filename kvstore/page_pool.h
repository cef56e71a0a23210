// SPDX-License-Identifier: Apache-2.0
// Memory for pages: slots of a few fixed sizes, cut from large slabs, counted exactly, shared by reference (fork).
// A slot's address never changes while it lives. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/base/status.h"

namespace kvring {

class PagePool;

// One slot, shared: copies are cheap and count references; the last one gives the slot back.
class PageRef {
 public:
  PageRef() = default;
  uint8_t* data() const { return slot_ ? slot_->data : nullptr; }
  int64_t bytes() const { return slot_ ? slot_->bytes : 0; }
  bool unique() const { return slot_.use_count() == 1; }
  explicit operator bool() const { return slot_ != nullptr; }

 private:
  friend class PagePool;
  struct Slot {
    PagePool* pool;
    uint8_t* data;
    int64_t bytes;
    ~Slot();
  };
  std::shared_ptr<Slot> slot_;
};

class PagePool {
 public:
  // limit: bytes that all slots in use may take together.
  explicit PagePool(int64_t limit_bytes);
  ~PagePool();
  // A zeroed slot. RESOURCE_EXHAUSTED names what was asked, what is in use and the limit.
  absl::StatusOr<PageRef> Allocate(int64_t bytes);
  int64_t bytes_in_use() const;  // sum of the sizes of live slots
  int64_t peak_bytes() const;
  int64_t limit_bytes() const { return limit_; }

  // What one slot of `bytes` really takes: rounded up to the pool's alignment (64). KvBytes counts with it.
  static int64_t SlotBytes(int64_t bytes);

 private:
  friend struct PageRef::Slot;
  void Free(uint8_t* data, int64_t bytes);
  struct SizeClass;
  mutable std::mutex mutex_;
  std::map<int64_t, std::unique_ptr<SizeClass>> classes_;
  int64_t limit_, in_use_ = 0, peak_ = 0;
};

}  // namespace kvring
