// SPDX-License-Identifier: Apache-2.0
#include "dist/local_attention.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "dist/merge_tree.h"
#include "kernels/parallel.h"

namespace kvring {
namespace {

// Rows of one tile: its partials (a few of them, by the tree's depth) stay in a core's second-level cache, and a page is
// decoded once for this many rows.
constexpr int64_t kTileRows = 384;
constexpr int kTasksPerThread =
    8;  // so that the last task does not leave the other threads idle for long
// Of queries: waking other threads takes longer than preparing so few.
constexpr int64_t kFewFloats = 4096;

template <class Body>
void ForAll(int64_t n, bool alone, const Body& body) {
  if (!alone) return ParallelFor(n, body);
  for (int64_t i = 0; i < n; ++i) body(i);
}

}  // namespace

// One tile of queries of one KV head against one subtree.
struct LocalAttention::Task {
  const LocalWork* work = nullptr;
  Subtree tree;
  SoftmaxPartial into;
  int head = 0;
  int64_t first = 0, count = 0;  // tokens of the tile, from the work's begin
  const float* raw_q = nullptr;
  const float* packed_q = nullptr;
  // Tasks, this one and those behind it, that make up a subtree of the rank; 0: one of those behind.
  int parts = 1;
  size_t whole = 0;  // the first of them
};

struct LocalAttention::PreparePart {
  size_t work;
  int head;
  int64_t first, count;
};

struct LocalAttention::Scratch {
  AttendScratch attend;
  AttendArgs args;
  PackedQueries queries;
  std::vector<int64_t> positions;
  // The next virtual shards of the task that have pages, and where to look for more: a page is fetched two pages ahead.
  struct Shard {
    int virtual_shard = 0;
    std::vector<PageView> pages;
  };
  Shard ahead[3];
  int next = 0, end = 0;
  std::vector<std::vector<float>> partials;  // by depth: [0] a piece, [1 + level] a right half

  SoftmaxPartial Partial(size_t depth, const SoftmaxPartial& like) {
    if (partials.size() <= depth) partials.resize(depth + 1);
    std::vector<float>& floats = partials[depth];
    const size_t need = static_cast<size_t>(PartialFloats(like.rows, like.dv));
    if (floats.size() < need) floats.resize(need);
    return PartialAt(floats.data(), like.rows, like.dv);
  }
};

LocalAttention::LocalAttention(const DistributedAttentionOptions& options)
    : options_(options),
      tile_tokens_(std::max<int64_t>(1, kTileRows / std::max(1, options.shape.group()))) {}

LocalAttention::~LocalAttention() = default;

std::unique_ptr<LocalAttention::Scratch> LocalAttention::TakeScratch() {
  std::lock_guard<std::mutex> lock(scratch_mutex_);
  if (idle_.empty()) return std::make_unique<Scratch>();
  std::unique_ptr<Scratch> scratch = std::move(idle_.back());
  idle_.pop_back();
  return scratch;
}

void LocalAttention::GiveScratch(std::unique_ptr<Scratch> scratch) {
  std::lock_guard<std::mutex> lock(scratch_mutex_);
  idle_.push_back(std::move(scratch));
}

int64_t LocalAttention::Tiles(const LocalWork& work) const {
  return (work.tokens + tile_tokens_ - 1) / tile_tokens_;
}

// Scales queries and brings them to the codec's domain, once per query and head.
void LocalAttention::Prepare(int layer, std::span<const LocalWork> works) {
  const KvShape& shape = options_.shape;
  const int64_t group = shape.group(), dk = shape.dk, row = int64_t{shape.query_heads} * dk;
  int64_t floats = 0;
  parts_.clear();
  q_offset_.clear();
  for (size_t w = 0; w < works.size(); ++w) {
    q_offset_.push_back(floats);
    floats += works[w].tokens * row;
    for (int head = 0; head < shape.kv_heads; ++head)
      for (int64_t first = 0; first < works[w].tokens; first += tile_tokens_)
        parts_.push_back({w, head, first, std::min(tile_tokens_, works[w].tokens - first)});
  }
  if (static_cast<int64_t>(raw_q_.size()) < floats) raw_q_.resize(floats), packed_q_.resize(floats);
  const float scale = static_cast<float>(std::log2(std::exp(1.0)) / std::sqrt(double(dk)));
  ForAll(static_cast<int64_t>(parts_.size()), floats <= kFewFloats, [&](int64_t p) {
    const auto [w, head, first, count] = parts_[p];
    const LocalWork& work = works[w];
    const int64_t at = q_offset_[w] + (head * work.tokens + first) * group * dk;
    for (int64_t t = 0; t < count; ++t) {
      const float* from = work.q + (first + t) * row + head * group * dk;
      float* to = raw_q_.data() + at + t * group * dk;
      for (int64_t i = 0; i < group * dk; ++i) to[i] = from[i] * scale;
    }
    const Codec& codec = work.slice->kv->codec();
    const float* state = work.slice->kv->State(layer, head);
    if (codec.StateFloats() > 0 && state == nullptr) {  // nothing is packed yet: nobody reads it
      std::copy_n(raw_q_.data() + at, count * group * dk, packed_q_.data() + at);
      return;
    }
    codec.PrepareQuery(layer, head, state, raw_q_.data() + at, count * group,
                       packed_q_.data() + at);
  });
}

// The highest level at which to cut subtrees that still gives every thread enough tasks.
int LocalAttention::ChooseLevel(std::span<const LocalWork> works) const {
  int level = 0;
  for (const LocalWork& work : works)
    for (const Subtree& tree : work.subtrees) level = std::max(level, tree.level);
  for (; level > 0; --level) {
    int64_t tasks = 0;
    for (const LocalWork& work : works)
      for (const Subtree& tree : work.subtrees)
        tasks += options_.shape.kv_heads * Tiles(work) << std::max(0, tree.level - level);
    if (tasks >= int64_t{kTasksPerThread} * Threads()) break;
  }
  return level;
}

void LocalAttention::Plan(std::span<const LocalWork> works) {
  const KvShape& shape = options_.shape;
  const int level = ChooseLevel(works);
  tasks_.clear();
  for (size_t w = 0; w < works.size(); ++w) {
    const LocalWork& work = works[w];
    const int64_t rows = work.tokens * shape.query_heads;
    for (size_t s = 0; s < work.subtrees.size(); ++s) {
      float* out = work.out + s * PartialFloats(rows, shape.dv);
      Task task{&work, work.subtrees[s], PartialAt(out, rows, shape.dv)};
      for (task.head = 0; task.head < shape.kv_heads; ++task.head)
        for (task.first = 0; task.first < work.tokens; task.first += tile_tokens_)
          AddTile(task, q_offset_[w], std::min(level, task.tree.level));
    }
  }
  GiveRoom();
}

// `whole`: one tile against one subtree of the rank; into: all rows of the subtree. Adds its parts at level `cut`.
void LocalAttention::AddTile(const Task& whole, int64_t q_offset, int cut) {
  const int64_t group = options_.shape.group();
  const int64_t row = (whole.head * whole.work->tokens + whole.first) * group;
  Task task = whole;
  task.count = std::min(tile_tokens_, whole.work->tokens - whole.first);
  task.into = whole.into.Slice(row, task.count * group);
  task.raw_q = raw_q_.data() + q_offset + row * options_.shape.dk;
  task.packed_q = packed_q_.data() + q_offset + row * options_.shape.dk;
  task.parts = 1 << (whole.tree.level - cut);
  task.whole = tasks_.size();
  for (int part = 0; part < 1 << (whole.tree.level - cut); ++part) {
    task.tree = {whole.tree.first + (part << cut), cut};
    tasks_.push_back(task);
    task.parts = 0;
  }
}

// The first part of a tile writes to its final place, the others beside it.
void LocalAttention::GiveRoom() {
  int64_t floats = 0;
  for (const Task& task : tasks_)
    if (task.parts == 0) floats += PartialFloats(task.into.rows, task.into.dv);
  if (static_cast<int64_t>(split_.size()) < floats) split_.resize(floats);
  float* next = split_.data();
  for (Task& task : tasks_) {
    if (task.parts != 0) continue;
    task.into = PartialAt(next, task.into.rows, task.into.dv);
    next += PartialFloats(task.into.rows, task.into.dv);
  }
}

void LocalAttention::Run(int layer, std::span<const LocalWork> works) {
  Prepare(layer, works);
  Plan(works);
  if (left_.size() < tasks_.size()) left_ = std::vector<std::atomic<int>>(2 * tasks_.size());
  for (size_t i = 0; i < tasks_.size(); ++i)
    left_[i].store(tasks_[i].parts, std::memory_order_relaxed);
  ParallelFor(static_cast<int64_t>(tasks_.size()), [&](int64_t i) {
    const Task& task = tasks_[i];
    Attend(layer, task);
    if (left_[task.whole].fetch_sub(1, std::memory_order_acq_rel) == 1) Fold(tasks_[task.whole]);
  });
}

// The parts of a tile, once all are there: whoever does it, the order is the tree's.
void LocalAttention::Fold(const Task& first) {
  if (first.parts == 1) return;
  thread_local std::vector<TreePart> parts;
  parts.clear();
  for (const Task& part : std::span<const Task>(&first, static_cast<size_t>(first.parts)))
    parts.push_back({part.tree, part.into});
  const int level = first.tree.level + std::countr_zero(static_cast<unsigned>(first.parts));
  FoldTree(parts, {first.tree.first, level});
}

void LocalAttention::Attend(int layer, const Task& task) {
  std::unique_ptr<Scratch> scratch = TakeScratch();
  const KvShape& shape = options_.shape;
  const AttentionSlice& slice = *task.work->slice;
  scratch->positions.clear();
  for (int64_t t = 0; t < task.count; ++t)
    scratch->positions.insert(scratch->positions.end(), shape.group(),
                              task.work->begin + task.first + t);
  AttendArgs& args = scratch->args;
  args.codec = &slice.kv->codec();
  args.layer = layer;
  args.head = task.head;
  args.state = slice.kv->State(layer, task.head);
  args.block_tokens = shape.block_tokens;
  args.rope = options_.rope[layer];
  args.dk = shape.dk;
  args.dv = shape.dv;
  args.positions = scratch->positions;
  args.raw_q = task.raw_q;
  args.packed_q = task.packed_q;
  args.rule = slice.rule;
  args.chunk_begin = slice.begin;
  args.form = options_.form;
  args.prepared = nullptr;
  if (args.form.math != AttentionMath::kTile && args.codec->PreparePacked(args, scratch->queries))
    args.prepared = &scratch->queries;
  args.was_announced = false;
  scratch->next = task.tree.first;
  scratch->end = task.tree.first + (1 << task.tree.level);
  for (int ahead = 0; ahead < 3; ++ahead) Load(task, *scratch, ahead);
  if (!Node(task, *scratch, task.tree, task.into)) MakeEmpty(task.into);
  GiveScratch(std::move(scratch));
}

// Attention over a subtree into `into`, whatever was there. False, and nothing written, when no row sees a key: an empty
// partial changes no bit of what it is merged with.
bool LocalAttention::Node(const Task& task, Scratch& scratch, const Subtree& tree,
                          const SoftmaxPartial& into) {
  if (tree.level == 0) return Shard(task, scratch, tree.first, into);
  const int half = tree.level - 1;
  const Subtree right{tree.first + (1 << half), half};
  if (!Node(task, scratch, {tree.first, half}, into)) return Node(task, scratch, right, into);
  const SoftmaxPartial other = scratch.Partial(1 + half, into);
  if (Node(task, scratch, right, other)) Merge(into, other);
  return true;
}

// The next virtual shard of which the task sees a page, with the pages that it sees; none when there is none.
void LocalAttention::Load(const Task& task, Scratch& scratch, int ahead) {
  Scratch::Shard& shard = scratch.ahead[ahead];
  const int64_t last = scratch.args.positions.back();
  std::vector<PageView>& pages = shard.pages;
  pages.clear();
  while (pages.empty() && scratch.next < scratch.end) {
    shard.virtual_shard = scratch.next++;
    task.work->slice->kv->Pages(scratch.args.layer, task.head, shard.virtual_shard, pages);
    while (!pages.empty() && pages.back().begin > last) pages.pop_back();
  }
}

bool LocalAttention::Shard(const Task& task, Scratch& scratch, int virtual_shard,
                           const SoftmaxPartial& into) {
  const std::vector<PageView>& pages = scratch.ahead[0].pages;
  if (pages.empty() || virtual_shard != scratch.ahead[0].virtual_shard) return false;
  const ShardMap& map = *task.work->slice->map;
  const auto page_at = [&](size_t i) -> const PageView* {
    for (const Scratch::Shard& shard : scratch.ahead) {
      if (i < shard.pages.size()) return &shard.pages[i];
      i -= shard.pages.size();
    }
    return nullptr;
  };
  AttendArgs& args = scratch.args;
  for (size_t first = 0, end = 0; first < pages.size(); first = end) {
    const int64_t piece = map.LocalIndex(pages[first].begin) / options_.piece_tokens;
    const int64_t limit = map.Token(virtual_shard, (piece + 1) * options_.piece_tokens);
    for (end = first + 1; end < pages.size() && pages[end].begin < limit;) ++end;
    const SoftmaxPartial target = first > 0 ? scratch.Partial(0, into) : into;
    MakeEmpty(target);
    args.pages = std::span<const PageView>(pages).subspan(first, end - first);
    args.announced[0] = page_at(end);
    args.announced[1] = page_at(end + 1);
    AttendPages(args, scratch.attend, target);
    args.was_announced = args.prepared != nullptr && args.announced[0] != nullptr;
    if (first > 0) Merge(into, target);
  }
  std::rotate(scratch.ahead, scratch.ahead + 1, scratch.ahead + 3);
  Load(task, scratch, 2);
  return true;
}

}  // namespace kvring
