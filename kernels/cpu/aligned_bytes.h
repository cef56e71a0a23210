// SPDX-License-Identifier: Apache-2.0
// Memory of packed weights and of buffers beside them. Private to kernels/.
#pragma once

#include <cstdint>
#include <memory>

namespace kvring {

// Frees what it was allocated with: its own memory, or its share of a chunk.
struct AlignedFree {
  std::shared_ptr<void> chunk;
  void operator()(uint8_t* p);
};
using AlignedBytes = std::unique_ptr<uint8_t[], AlignedFree>;

// Memory aligned to cache lines, uninitialized.
AlignedBytes AllocateAligned(int64_t bytes);

// The same for weights: pieces of large chunks that ask the system for huge pages, since the layers of a small model are
// smaller than one, and reading them page by page costs a third of memory's speed. A chunk lives as long as a piece of it.
// Thread-safe.
AlignedBytes AllocateWeights(int64_t bytes);

}  // namespace kvring
