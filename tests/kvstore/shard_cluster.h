// SPDX-License-Identifier: Apache-2.0
// Ranks of one sequence in a row, without threads or messages: what the executor does with shards, for tests of shards.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "kvstore/sequence_shard.h"

namespace kvring {

// Rows that depend on (layer, token) alone: uniform in [-4, 4), with a channel of large numbers and one of zeros.
struct TestRows {
  std::vector<float> k, v, q;
};
TestRows MakeTestRows(const KvShape& shape, int layer, const std::vector<int64_t>& positions);

struct Subject {
  std::string name;
  std::shared_ptr<const Codec> codec;
  KvShape shape;
  std::vector<RopeTable> rope;  // [layers], bases differ from layer to layer
  bool is_mock = true;          // small, and so fit for slow tests
  std::vector<const RopeTable*> RopePointers() const;
};
std::vector<RopeTable> MakeTestRope(const KvShape& shape);
// The mock codec in all its forms.
std::vector<Subject> MockSubjects();

constexpr int kTestShards = 16;

class ShardCluster {
 public:
  ShardCluster(const Subject& subject, int ranks, const VisibilityRule& rule,
               int64_t limit = int64_t{1} << 40, int virtual_shards = kTestShards);

  // Takes the sequence to `end` in one step. parts > 1: each rank gives its rows in that many calls of Append.
  absl::Status Step(int64_t end, int parts = 1);
  // Takes it there in steps of `chunk`.
  absl::Status Run(int64_t end, int64_t chunk);
  // Cuts all ranks, or forks all ranks into a new cluster that shares the pools.
  absl::Status Truncate(int64_t length);
  absl::StatusOr<std::unique_ptr<ShardCluster>> Fork(int64_t length) const;

  // Everything that can be read, by (layer, head, first position), whatever rank it lies on. The packed bytes are pages of
  // PageSize, for pages that grow beyond it also what they decode to.
  using Content = std::map<std::tuple<int, int, int64_t>, std::string>;
  Content Read() const;

  // Empty, or what differs between bytes(), page_bytes(), the pools and KvBytes (for pages that grow, a lower bound).
  // `alone`: the pools hold nothing else.
  std::string CheckBytes(bool alone = true) const;
  // NaN into every row of exact slots that is not in use.
  void PoisonUnused();

  // After an import: the cluster's own idea of the length.
  void AssumeLength(int64_t length) { length_ = length; }

  // Later tokens get other rows: two forks that go different ways.
  void SetBranch(int branch) { branch_ = branch; }

  const ShardMap& map() const { return map_; }
  SequenceShard& shard(int rank) { return *shards_[rank]; }
  PagePool& pool(int rank) { return *pools_[rank]; }
  int64_t length() const { return length_; }

 private:
  ShardCluster(const ShardCluster& other, int64_t length);
  absl::Status Layer(int layer, int64_t end, int parts);
  absl::Status Freeze(int layer);
  int64_t PlannedPages(int slot) const;

  const Subject& subject_;
  VisibilityRule rule_;
  ShardMap map_;
  std::vector<std::shared_ptr<PagePool>> pools_;
  std::vector<std::unique_ptr<SequenceShard>> shards_;
  int64_t length_ = 0;
  int branch_ = 0;
};

std::vector<VisibilityRule> AllRules();  // cells of 256 tokens
std::string RuleName(const VisibilityRule& rule);

}  // namespace kvring
