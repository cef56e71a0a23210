// SPDX-License-Identifier: Apache-2.0
#include "dist/merge_tree.h"

#include <cassert>

namespace kvring {
namespace {

SoftmaxPartial Fold(std::span<const TreePart> parts, size_t& next, const Subtree& root) {
  assert(next < parts.size() && root.level >= 0);
  if (parts[next].tree == root) return parts[next++].partial;
  const int half = root.level - 1;
  const SoftmaxPartial left = Fold(parts, next, {root.first, half});
  const SoftmaxPartial right = Fold(parts, next, {root.first + (1 << half), half});
  Merge(left, right);
  return left;
}

}  // namespace

SoftmaxPartial FoldTree(std::span<const TreePart> parts, const Subtree& root) {
  size_t next = 0;
  const SoftmaxPartial result = Fold(parts, next, root);
  assert(next == parts.size());
  return result;
}

}  // namespace kvring
