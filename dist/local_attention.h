// SPDX-License-Identifier: Apache-2.0
// This rank's share of attention: the queries of everybody against the virtual shards that live here, one partial per
// maximal subtree. No communication.
//
// Bits: within a virtual shard, pieces of piece_tokens local tokens accumulate in ascending order and fold in ascending
// order; shards combine along the fixed tree. How work is cut into tasks (tiles of queries, subtrees) follows the threads
// and never touches that order: rows are independent, and a subtree's partial is the same whoever computes its halves.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "dist/distributed_attention.h"

namespace kvring {

// A run of queries of one slice.
struct LocalWork {
  const AttentionSlice* slice = nullptr;
  int64_t begin = 0;  // position of the first query
  int64_t tokens = 0;
  const float* q = nullptr;           // [tokens][query_heads][dk] after RoPE, unscaled
  std::span<const Subtree> subtrees;  // of this rank, ascending
  float* out =
      nullptr;  // [subtrees] partials of tokens * query_heads rows: [kv head][token][query of group]
};

class LocalAttention {
 public:
  explicit LocalAttention(const DistributedAttentionOptions& options);
  ~LocalAttention();

  // Fills every work's out. Uses Threads() threads.
  void Run(int layer, std::span<const LocalWork> works);

 private:
  struct Task;
  struct PreparePart;
  struct Scratch;
  std::unique_ptr<Scratch> TakeScratch();
  void GiveScratch(std::unique_ptr<Scratch> scratch);
  void Prepare(int layer, std::span<const LocalWork> works);
  void Plan(std::span<const LocalWork> works);
  void AddTile(const Task& whole, int64_t q_offset, int cut);
  void GiveRoom();
  int ChooseLevel(std::span<const LocalWork> works) const;
  int64_t Tiles(const LocalWork& work) const;
  void Attend(int layer, const Task& task);
  static void Fold(const Task& first);
  static void Load(const Task& task, Scratch& scratch, int ahead);
  bool Node(const Task& task, Scratch& scratch, const Subtree& tree, const SoftmaxPartial& into);
  bool Shard(const Task& task, Scratch& scratch, int virtual_shard, const SoftmaxPartial& into);

  const DistributedAttentionOptions options_;
  int64_t tile_tokens_;
  std::vector<float> raw_q_,
      packed_q_;  // works one after the other, each [kv head][token][query of group][dk]
  std::vector<int64_t> q_offset_;  // of each work, floats
  std::vector<float> split_;       // partials of tasks below their rank's subtree
  // Of the call under way; kept so that a step needs no memory.
  std::vector<PreparePart> parts_;
  std::vector<Task> tasks_;
  std::vector<std::atomic<int>> left_;  // parts of a tile that are not there yet, by its first task
  std::mutex scratch_mutex_;
  std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace kvring
