// SPDX-License-Identifier: Apache-2.0
// The fixed balanced binary tree over virtual shards (distributed-attention spec 9): whoever holds which subtrees, merging
// them along this tree gives the same bits.
#pragma once

#include <span>

#include "kernels/softmax_partial.h"
#include "runtime/base/shard_map.h"

namespace kvring {

struct TreePart {
  Subtree tree;
  SoftmaxPartial partial;  // same rows in all parts
};

// Merges parts that cover `root` exactly, ascending, along the tree. The result is in the first part's memory; the other
// parts are used up.
SoftmaxPartial FoldTree(std::span<const TreePart> parts, const Subtree& root);

}  // namespace kvring
