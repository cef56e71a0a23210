// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/aligned_bytes.h"

#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <new>

namespace kvring {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kChunkBytes = 16 * kHugePage;

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

#if !defined(__SANITIZE_ADDRESS__)
// Null when the system has no memory. What is never written to takes none.
std::shared_ptr<void> MakeChunk(int64_t bytes) {
  const auto room = static_cast<size_t>(bytes + kHugePage);
  void* const memory =
      mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* const all = static_cast<uint8_t*>(memory);
  const int64_t before =
      RoundUp(reinterpret_cast<intptr_t>(all), kHugePage) - reinterpret_cast<intptr_t>(all);
  // A system without huge pages answers with an error and small ones.
  madvise(all + before, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return {all + before, [all, room](void*) { munmap(all, room); }};
}

// The chunk that pieces are taken from now. It holds no reference: a chunk ends with its last piece.
struct Open {
  std::mutex mutex;
  std::weak_ptr<void> chunk;
  int64_t used = 0;
};

AlignedBytes TakePiece(int64_t bytes) {
  static Open open;
  const std::lock_guard lock(open.mutex);
  std::shared_ptr<void> chunk = open.chunk.lock();
  if (chunk == nullptr || open.used + bytes > kChunkBytes) {
    chunk = MakeChunk(kChunkBytes);
    if (chunk == nullptr) throw std::bad_alloc();
    open.chunk = chunk;
    open.used = 0;
  }
  auto* const piece = static_cast<uint8_t*>(chunk.get()) + open.used;
  open.used += bytes;
  return {piece, {std::move(chunk)}};
}
#endif

}  // namespace

void AlignedFree::operator()(uint8_t* p) {
  if (chunk == nullptr) {
    std::free(p);
  } else {
    chunk.reset();
  }
}

AlignedBytes AllocateAligned(int64_t bytes) {
  auto* p = static_cast<uint8_t*>(std::aligned_alloc(64, static_cast<size_t>(RoundUp(bytes, 64))));
  if (p == nullptr) throw std::bad_alloc();
  return AlignedBytes(p);
}

AlignedBytes AllocateWeights(int64_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  return AllocateAligned(bytes);  // pieces have no guards between them
#else
  bytes = RoundUp(bytes, 64);
  if (bytes <= kChunkBytes / 4) return TakePiece(bytes);
  std::shared_ptr<void> chunk = MakeChunk(RoundUp(bytes, kHugePage));
  if (chunk == nullptr) throw std::bad_alloc();
  auto* const p = static_cast<uint8_t*>(chunk.get());
  return {p, {std::move(chunk)}};
#endif
}

}  // namespace kvring
