// SPDX-License-Identifier: Apache-2.0
// What distributed attention needs of a rank's cache. dist defines it, kvstore does not know it, runtime joins the two.
#pragma once

#include <vector>

#include "kernels/codec.h"

namespace kvring {

class KvSource {
 public:
  virtual ~KvSource() = default;
  virtual const Codec& codec() const = 0;
  // Sequence state of one (layer, KV head), or null: not frozen yet, or the codec has none.
  virtual const float* State(int layer, int head) const = 0;
  // Pages of one virtual shard of this rank, ascending positions; appended to `pages`. Thread-safe while nobody writes.
  virtual void Pages(int layer, int head, int virtual_shard,
                     std::vector<PageView>& pages) const = 0;
};

}  // namespace kvring
