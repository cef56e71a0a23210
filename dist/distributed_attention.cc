// SPDX-License-Identifier: Apache-2.0
#include "dist/distributed_attention.h"

#include <algorithm>
#include <bit>

#include "dist/local_attention.h"
#include "dist/merge_tree.h"
#include "kernels/parallel.h"

namespace kvring {
namespace {

constexpr int64_t kFinishTokens = 128;  // tokens that one task of the last merge takes
constexpr int64_t kFewTokens = 4;       // merging so few takes less than waking other threads

// Queries [begin, begin + tokens) of a slice that travel in one round.
struct Part {
  const AttentionSlice* slice = nullptr;
  int64_t begin = 0, tokens = 0;
  int64_t own_row = 0;  // row of this rank's q and out that its first own query of this part has
  size_t homes = 0;     // where its queries by home rank begin (homes_)
  const std::vector<std::vector<Subtree>>* subtrees = nullptr;  // by rank
};

// Maximal subtrees of a slice's layout, by rank.
struct Layout {
  int virtual_shards = 0, rho = 0;
  std::vector<std::vector<Subtree>> subtrees;
};

// Rows [first, first + count) of one head's queries of a part.
struct FinishTask {
  size_t part;
  int head;
  int64_t first, count;
};

// Of one thread.
struct FinishScratch {
  std::vector<TreePart> tile;
  std::vector<float> output;
};
thread_local FinishScratch t_finish;

// Calls run(position, count, home) for every run of tokens of one block in [begin, end), ascending.
template <typename Run>
void ForEachRun(const ShardMap& map, int64_t begin, int64_t end, const Run& run) {
  const int64_t block = map.block_tokens();
  for (int64_t t = begin; t < end;) {
    const int64_t next = std::min(end, (t / block + 1) * block);
    run(t, next - t, map.Home(t));
    t = next;
  }
}

// Position of the index-th own query of a part.
int64_t OwnPosition(const Part& part, int rank, bool all, int64_t index) {
  if (all) return part.begin + index;
  int64_t position = -1;
  ForEachRun(*part.slice->map, part.begin, part.begin + part.tokens,
             [&](int64_t begin, int64_t count, int home) {
               if (home != rank || position >= 0) return;
               if (index < count) position = begin + index;
               index -= count;
             });
  return position;
}

int64_t Sum(const std::vector<int64_t>& values) {
  int64_t sum = 0;
  for (int64_t value : values) sum += value;
  return sum;
}

float* Room(std::vector<float>& buffer, int64_t floats) {
  if (static_cast<int64_t>(buffer.size()) < floats) buffer.resize(floats);
  return buffer.data();
}

std::vector<int64_t> Bytes(std::vector<int64_t> floats) {
  for (int64_t& count : floats) count *= sizeof(float);
  return floats;
}

class DistributedAttentionImpl : public DistributedAttention {
 public:
  DistributedAttentionImpl(Communicator* comm, const DistributedAttentionOptions& options)
      : comm_(comm), options_(options), local_(options) {}

  absl::Status Run(int layer, std::span<const AttentionSlice> slices, const float* q, float* out,
                   Deadline deadline) override {
    layer_ = layer;
    q_ = q;
    out_ = out;
    deadline_ = deadline;
    const absl::Status status = RunSlices(slices);
    // The others wait for this rank in the next exchange at the latest: tell them.
    if (status.ok()) return status;
    comm_->Abort(status);
    return Annotate(status, absl::StrCat("attention of layer ", layer));
  }

 private:
  using Round = std::span<const Part>;
  absl::Status RunSlices(std::span<const AttentionSlice> slices);
  absl::Status Check(std::span<const AttentionSlice> slices) const;
  void FindSubtrees(std::span<const AttentionSlice> slices);
  void MakeRounds(std::span<const AttentionSlice> slices, bool gathers);
  Round RoundAt(size_t r) const {
    const size_t end = r + 1 < rounds_.size() ? rounds_[r + 1] : parts_.size();
    return Round(parts_).subspan(rounds_[r], end - rounds_[r]);
  }
  int64_t HomeTokens(const Part& part, int rank) const { return homes_[part.homes + rank]; }
  int64_t FloatsPerToken(const std::vector<std::vector<Subtree>>& subtrees) const;
  absl::Status RunReplicated(const Round& round);
  absl::Status RunGather(const Round& round);
  absl::Status GatherQueries(const Round& round);
  absl::Status ReturnPartials(const Round& round);
  float* PackPartials(const Part& part, const LocalWork& work, int to, float* at) const;
  void Attend(const Round& round, const float* q, bool sorted);
  absl::Status FinishRound(const Round& round, const std::vector<int64_t>& tokens,
                           const float* partials);
  absl::Status FinishTile(const Part& part, int64_t tokens, std::span<const TreePart> parts,
                          int head, int64_t first, int64_t count) const;
  absl::Status Fault(const Part& part, int head, int64_t row, const std::string& what) const;

  int64_t RowFloats() const { return int64_t{options_.shape.query_heads} * options_.shape.dk; }
  int64_t Rows(int64_t tokens) const { return tokens * options_.shape.query_heads; }
  int64_t Floats(int64_t tokens) const { return PartialFloats(Rows(tokens), options_.shape.dv); }
  bool Gathers(const AttentionSlice& slice) const { return comm_->size() > 1 && !slice.replicated; }

  Communicator* comm_;
  const DistributedAttentionOptions options_;
  LocalAttention local_;
  // Of the call under way.
  int layer_ = 0;
  const float* q_ = nullptr;
  float* out_ = nullptr;
  Deadline deadline_;
  std::vector<Layout> layouts_;               // by slice
  std::vector<Part> parts_;                   // round by round
  std::vector<size_t> rounds_;                // the first part of each
  std::vector<int64_t> homes_;                // queries of each part by home rank
  std::vector<LocalWork> works_;              // of the round under way, by part
  std::vector<int64_t> own_tokens_;           // own queries of the round under way, by part
  std::vector<std::vector<TreePart>> trees_;  // by part
  std::vector<FinishTask> tiles_;
  std::vector<absl::Status> statuses_;
  // Reused between calls.
  std::vector<float> gathered_, sorted_, partials_, outgoing_, incoming_;
};

absl::Status DistributedAttentionImpl::Check(std::span<const AttentionSlice> slices) const {
  if (layer_ < 0 || layer_ >= static_cast<int>(options_.rope.size())) {
    return absl::InvalidArgumentError(absl::StrCat("no layer ", layer_));
  }
  if (options_.piece_tokens < 1 || options_.piece_tokens % options_.shape.block_tokens != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("pieces of ", options_.piece_tokens, " tokens are not whole blocks"));
  }
  for (const AttentionSlice& slice : slices) {
    if (slice.map->ranks() != comm_->size() ||
        slice.map->block_tokens() != options_.shape.block_tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("a slice laid out for ", slice.map->ranks(), " ranks and blocks of ",
                       slice.map->block_tokens(), " among ", comm_->size(), " ranks and blocks of ",
                       options_.shape.block_tokens));
    }
  }
  return absl::OkStatus();
}

void DistributedAttentionImpl::FindSubtrees(std::span<const AttentionSlice> slices) {
  if (layouts_.size() < slices.size()) layouts_.resize(slices.size());
  for (size_t s = 0; s < slices.size(); ++s) {
    const ShardMap& map = *slices[s].map;
    Layout& layout = layouts_[s];
    if (layout.virtual_shards == map.virtual_shards() && layout.rho == map.rho()) continue;
    layout = {map.virtual_shards(), map.rho(), {}};
    for (int rank = 0; rank < comm_->size(); ++rank)
      layout.subtrees.push_back(map.Subtrees(map.SlotOfRank(rank)));
  }
}

// Queries and partials that one more token of a round brings, at most, on any rank.
int64_t DistributedAttentionImpl::FloatsPerToken(
    const std::vector<std::vector<Subtree>>& subtrees) const {
  int64_t partials = 0, most = 0;
  for (const std::vector<Subtree>& of_rank : subtrees) {
    partials += static_cast<int64_t>(of_rank.size());
    most = std::max(most, static_cast<int64_t>(of_rank.size()));
  }
  return 2 * RowFloats() + (partials + 2 * most) * Floats(1);
}

// A pure function of slices and maps, so that all ranks agree.
void DistributedAttentionImpl::MakeRounds(std::span<const AttentionSlice> slices, bool gathers) {
  parts_.clear();
  rounds_.clear();
  homes_.clear();
  int64_t room = 0, own_row = 0;
  for (size_t s = 0; s < slices.size(); ++s) {
    const AttentionSlice& slice = slices[s];
    const int64_t cost = FloatsPerToken(layouts_[s].subtrees);
    const bool mine = Gathers(slice) == gathers;
    for (int64_t done = 0; done < slice.tokens;) {
      if (mine && room < cost) {
        rounds_.push_back(parts_.size());
        room = std::max<int64_t>(cost, options_.round_bytes / sizeof(float));
      }
      Part part{&slice,  slice.begin + done, slice.tokens - done,
                own_row, homes_.size(),      &layouts_[s].subtrees};
      if (mine) part.tokens = std::min(part.tokens, room / cost);
      homes_.resize(part.homes + static_cast<size_t>(comm_->size()), 0);
      ForEachRun(*slice.map, part.begin, part.begin + part.tokens,
                 [&](int64_t, int64_t count, int home) { homes_[part.homes + home] += count; });
      own_row += Gathers(slice) ? HomeTokens(part, comm_->rank()) : part.tokens;
      done += part.tokens;
      if (!mine) continue;
      room -= part.tokens * cost;
      parts_.push_back(part);
    }
  }
}

absl::Status DistributedAttentionImpl::RunSlices(std::span<const AttentionSlice> slices) {
  KVRING_RETURN_IF_ERROR(Check(slices));
  FindSubtrees(slices);
  MakeRounds(slices, true);
  for (size_t r = 0; r < rounds_.size(); ++r) KVRING_RETURN_IF_ERROR(RunGather(RoundAt(r)));
  MakeRounds(slices, false);
  for (size_t r = 0; r < rounds_.size(); ++r) KVRING_RETURN_IF_ERROR(RunReplicated(RoundAt(r)));
  return absl::OkStatus();
}

// This rank's partials of a round, in partials_, part by part; works_ says where. q: rows of the whole parts, one part after the other when
// `sorted`, else this rank's own rows as the caller gave them.
void DistributedAttentionImpl::Attend(const Round& round, const float* q, bool sorted) {
  works_.clear();
  int64_t floats = 0, rows = 0;
  for (const Part& part : round)
    floats += Floats(part.tokens) * static_cast<int64_t>((*part.subtrees)[comm_->rank()].size());
  float* at = Room(partials_, floats);
  for (const Part& part : round) {
    const std::vector<Subtree>& own = (*part.subtrees)[comm_->rank()];
    const float* part_q = q + (sorted ? rows : part.own_row) * RowFloats();
    works_.push_back({part.slice, part.begin, part.tokens, part_q, own, at});
    at += Floats(part.tokens) * static_cast<int64_t>(own.size());
    rows += part.tokens;
  }
  local_.Run(layer_, works_);
}

absl::Status DistributedAttentionImpl::RunReplicated(const Round& round) {
  Attend(round, q_, false);
  own_tokens_.clear();
  for (const Part& part : round) own_tokens_.push_back(part.tokens);
  if (comm_->size() == 1) return FinishRound(round, own_tokens_, partials_.data());
  std::vector<int64_t> floats(comm_->size(), 0);
  for (const Part& part : round) {
    for (int rank = 0; rank < comm_->size(); ++rank)
      floats[rank] += Floats(part.tokens) * static_cast<int64_t>((*part.subtrees)[rank].size());
  }
  KVRING_RETURN_IF_ERROR(comm_->AllGatherV(
      partials_.data(), floats[comm_->rank()] * static_cast<int64_t>(sizeof(float)),
      Room(incoming_, Sum(floats)), Bytes(floats), deadline_));
  return FinishRound(round, own_tokens_, incoming_.data());
}

absl::Status DistributedAttentionImpl::RunGather(const Round& round) {
  KVRING_RETURN_IF_ERROR(GatherQueries(round));
  Attend(round, sorted_.data(), true);
  KVRING_RETURN_IF_ERROR(ReturnPartials(round));
  own_tokens_.clear();
  for (const Part& part : round) own_tokens_.push_back(HomeTokens(part, comm_->rank()));
  return FinishRound(round, own_tokens_, incoming_.data());
}

// Everybody's queries of the round, in sorted_, part by part in order of position.
absl::Status DistributedAttentionImpl::GatherQueries(const Round& round) {
  const int ranks = comm_->size(), rank = comm_->rank();
  std::vector<int64_t> floats(ranks, 0);
  for (const Part& part : round)
    for (int r = 0; r < ranks; ++r) floats[r] += HomeTokens(part, r) * RowFloats();
  float* own = Room(outgoing_, floats[rank]);
  for (const Part& part : round)
    own = std::copy_n(q_ + part.own_row * RowFloats(), HomeTokens(part, rank) * RowFloats(), own);
  KVRING_RETURN_IF_ERROR(comm_->AllGatherV(outgoing_.data(),
                                           floats[rank] * static_cast<int64_t>(sizeof(float)),
                                           Room(gathered_, Sum(floats)), Bytes(floats), deadline_));
  std::vector<const float*> from(ranks);
  int64_t at = 0;
  for (int r = 0; r < ranks; at += floats[r++]) from[r] = gathered_.data() + at;
  float* to = Room(sorted_, Sum(floats));
  for (const Part& part : round) {
    ForEachRun(*part.slice->map, part.begin, part.begin + part.tokens,
               [&](int64_t, int64_t count, int home) {
                 to = std::copy_n(from[home], count * RowFloats(), to);
                 from[home] += count * RowFloats();
               });
  }
  return absl::OkStatus();
}

// Copies the rows that are at home on rank `to` out of one part's partials; the end of what was written.
float* DistributedAttentionImpl::PackPartials(const Part& part, const LocalWork& work, int to,
                                              float* at) const {
  const int64_t group = options_.shape.group(), dv = options_.shape.dv;
  const int64_t home = HomeTokens(part, to);
  for (size_t s = 0; s < work.subtrees.size(); ++s, at += Floats(home)) {
    const SoftmaxPartial all = PartialAt(work.out + s * Floats(part.tokens), Rows(part.tokens), dv);
    const SoftmaxPartial packed = PartialAt(at, Rows(home), dv);
    int64_t done = 0;
    const auto copy = [&](int64_t begin, int64_t count, int owner) {
      if (owner != to) return;
      for (int head = 0; head < options_.shape.kv_heads; ++head) {
        const int64_t source = (head * part.tokens + begin - part.begin) * group;
        const int64_t target = (head * home + done) * group, rows = count * group;
        std::copy_n(all.m + source, rows, packed.m + target);
        std::copy_n(all.l + source, rows, packed.l + target);
        std::copy_n(all.o + source * dv, rows * dv, packed.o + target * dv);
      }
      done += count;
    };
    ForEachRun(*part.slice->map, part.begin, part.begin + part.tokens, copy);
  }
  return at;
}

// Partials of this rank's own queries from every rank, in incoming_: rank by rank, part by part.
absl::Status DistributedAttentionImpl::ReturnPartials(const Round& round) {
  const int ranks = comm_->size(), rank = comm_->rank();
  std::vector<int64_t> sends(ranks, 0), receives(ranks, 0);
  for (const Part& part : round) {
    for (int r = 0; r < ranks; ++r) {
      const auto own = static_cast<int64_t>((*part.subtrees)[rank].size());
      const auto theirs = static_cast<int64_t>((*part.subtrees)[r].size());
      sends[r] += own * Floats(HomeTokens(part, r));
      receives[r] += theirs * Floats(HomeTokens(part, rank));
    }
  }
  float* at = Room(outgoing_, Sum(sends));
  for (int r = 0; r < ranks; ++r)
    for (size_t p = 0; p < round.size(); ++p) at = PackPartials(round[p], works_[p], r, at);
  return comm_->AllToAllV(outgoing_.data(), Bytes(sends), Room(incoming_, Sum(receives)),
                          Bytes(receives), deadline_);
}

// Merges what all ranks found and writes this rank's rows of out. tokens: own queries, by part. partials: rank by rank,
// part by part, subtree by subtree; used up.
absl::Status DistributedAttentionImpl::FinishRound(const Round& round,
                                                   const std::vector<int64_t>& tokens,
                                                   const float* partials) {
  if (trees_.size() < round.size()) trees_.resize(round.size());
  for (std::vector<TreePart>& tree : trees_) tree.clear();
  float* at = const_cast<float*>(partials);
  for (int rank = 0; rank < comm_->size(); ++rank) {
    for (size_t p = 0; p < round.size(); ++p) {
      for (const Subtree& tree : (*round[p].subtrees)[rank]) {
        trees_[p].push_back({tree, PartialAt(at, Rows(tokens[p]), options_.shape.dv)});
        at += Floats(tokens[p]);
      }
    }
  }
  tiles_.clear();
  for (size_t p = 0; p < round.size(); ++p) {
    std::sort(trees_[p].begin(), trees_[p].end(),
              [](const TreePart& a, const TreePart& b) { return a.tree.first < b.tree.first; });
    for (int head = 0; head < options_.shape.kv_heads; ++head)
      for (int64_t first = 0; first < tokens[p]; first += kFinishTokens)
        tiles_.push_back({p, head, first, std::min(kFinishTokens, tokens[p] - first)});
  }
  statuses_.assign(tiles_.size(), absl::OkStatus());
  const auto finish = [&](int64_t i) {
    const auto [p, head, first, count] = tiles_[i];
    statuses_[i] = FinishTile(round[p], tokens[p], trees_[p], head, first, count);
  };
  const int64_t n = static_cast<int64_t>(tiles_.size());
  if (Sum(tokens) > kFewTokens) {
    ParallelFor(n, finish);
  } else {
    for (int64_t i = 0; i < n; ++i) finish(i);
  }
  for (const absl::Status& status : statuses_) KVRING_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::Status DistributedAttentionImpl::FinishTile(const Part& part, int64_t tokens,
                                                  std::span<const TreePart> parts, int head,
                                                  int64_t first, int64_t count) const {
  const KvShape& shape = options_.shape;
  const int64_t group = shape.group(), rows = count * group, row = (head * tokens + first) * group;
  std::vector<TreePart>& tile = t_finish.tile;
  tile.assign(parts.begin(), parts.end());
  for (TreePart& node : tile) {
    node.partial = node.partial.Slice(row, rows);
    if (const int64_t bad = FindNonFinite(node.partial); bad >= 0) {
      return Fault(part, head, first * group + bad,
                   absl::StrCat("is not finite over virtual shards ", node.tree.first, " to ",
                                node.tree.first + (1 << node.tree.level) - 1));
    }
  }
  const int level = std::countr_zero(static_cast<unsigned>(part.slice->map->virtual_shards()));
  const SoftmaxPartial merged = FoldTree(tile, {0, level});
  std::vector<float>& output = t_finish.output;
  output.resize(static_cast<size_t>(rows * shape.dv));
  if (!Finalize(merged, output.data())) {
    int64_t bad = 0;
    while (Finalize(merged.Slice(bad, 1), output.data())) ++bad;
    return Fault(part, head, first * group + bad,
                 merged.l[bad] == 0.0f ? "sees no key" : "is not finite");
  }
  part.slice->kv->codec().FinishOutput(layer_, head, output.data(), rows);
  for (int64_t t = 0; t < count; ++t) {
    const int64_t out_row = (part.own_row + first + t) * shape.query_heads + head * group;
    std::copy_n(output.data() + t * group * shape.dv, group * shape.dv, out_ + out_row * shape.dv);
  }
  return absl::OkStatus();
}

// row: of the part's own queries, [token][query of group].
absl::Status DistributedAttentionImpl::Fault(const Part& part, int head, int64_t row,
                                             const std::string& what) const {
  const int64_t group = options_.shape.group();
  const int64_t position = OwnPosition(part, comm_->rank(), !Gathers(*part.slice), row / group);
  return absl::InternalError(absl::StrCat("rank ", comm_->rank(), ", layer ", layer_, ", head ",
                                          head * group + row % group, ", position ", position,
                                          ": attention ", what));
}

}  // namespace

// Per query token of a round: its queries as they come, sorted, scaled and in the codec's domain, and partials of own subtrees,
// on their way out and on their way back. A slot has at most 2 log2(V) subtrees; one, in all usual cases.
int64_t DistributedAttention::BufferBytes(const KvShape& shape, int ranks, int64_t own_rows,
                                          int64_t step_tokens) {
  const int64_t q = int64_t{shape.query_heads} * shape.dk;
  const int64_t partial = PartialFloats(shape.query_heads, shape.dv);
  const int64_t floats = ranks == 1 ? 2 * q + partial : 4 * q + 2 * partial;
  const int64_t returned = ranks == 1 ? 0 : own_rows * (q + ranks * partial);
  const int64_t limit = DistributedAttentionOptions().round_bytes;
  return std::min((step_tokens * floats + returned) * static_cast<int64_t>(sizeof(float)),
                  limit + step_tokens * 2 * q * static_cast<int64_t>(sizeof(float)));
}

std::unique_ptr<DistributedAttention> DistributedAttention::Create(
    Communicator* comm, const DistributedAttentionOptions& options) {
  return std::make_unique<DistributedAttentionImpl>(comm, options);
}

}  // namespace kvring
