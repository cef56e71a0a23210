// SPDX-License-Identifier: Apache-2.0
// The one implementation of SequenceShard; kvstore's own. Its parts: shard_append.cc (rows in), shard_encode.cc (rows to
// pages, cells closed), shard_cut.cc (fork, truncate), shard_io.cc (bytes out and in), sequence_shard.cc (the rest).
//
// Invariants between steps, in every layer: the tokens of this rank are those below length(); a block has its pages when
// all its tokens are encoded, its exact rows when its index is at least `gone`. Both depend on the history of lengths
// alone and not on which blocks this rank has, so that all ranks answer alike to a cut.
//
// Pages have the codec's size, except that of head 0 where the codec's grows: it is replaced by a larger one with the same
// bytes before tokens are encoded, never while others read.
//
// Slots of a page beyond `tokens` are zero, except after a cut that left no exact rows to encode the block anew from; they
// are never read, and Encode writes a slot whole. Sinks: codecs that encode token by token leave the slots of the sinks
// zero, codecs with page-wide parameters get the whole block. Rows of sinks are always read from their own slot.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/kv_bytes.h"
#include "kvstore/sequence_shard.h"

namespace kvring {

class SequenceShardImpl final : public SequenceShard {
 public:
  SequenceShardImpl(const SequenceShardOptions& options, const ShardMap& map);
  ~SequenceShardImpl() override = default;

  absl::Status Append(int layer, const AppendRows& rows) override;
  int64_t prefix_blocks() const override { return traits_.prefix_tokens / shape_.block_tokens; }
  bool frozen(int layer) const override { return layers_[layer].state != nullptr; }
  const float* BlockSums(int layer, int64_t block) const override;
  absl::Status Freeze(int layer, const float* sums) override;
  absl::Status EncodeReady(int layer, int64_t length) override;
  void CloseCells(int layer, int64_t length) override;
  void Pages(int layer, int head, int virtual_shard, std::vector<PageView>& pages) const override;
  const float* State(int layer, int head) const override;
  int64_t length() const override { return length_; }
  void SetLength(int64_t length) override;
  int64_t local_tokens() const override { return layers_.empty() ? 0 : layers_[0].tokens; }
  absl::StatusOr<std::unique_ptr<SequenceShard>> Fork(int64_t length) const override;
  absl::Status Truncate(int64_t length) override;
  int64_t bytes() const override { return bytes_; }
  int64_t page_bytes() const override { return page_bytes_; }
  const KvCounters& counters() const override { return counters_; }
  const std::vector<KvCounters>& layer_counters() const override { return layer_counters_; }

  // For shard_io: where a virtual shard lies in this rank's run, INVALID_ARGUMENT when it lives elsewhere; and the whole
  // sequence's state from its fp16 bytes, FAILED_PRECONDITION when there is one.
  absl::StatusOr<int> RunIndex(int virtual_shard) const;
  absl::Status SetState(std::span<const uint8_t> halves);

 private:
  friend class ShardWriter;
  friend class ShardReader;

  struct Block {
    int tokens = 0;   // slots in use
    int encoded = 0;  // slots that the pages hold
    int exact_first =
        0;  // first slot whose exact row exists; above 0 in a block that goes on after its cell closed
    PageRef exact;
  };
  // Pages lie beside the blocks, all of a virtual shard in one row: attention walks through them once a head and step.
  struct ShardBlocks {  // of one virtual shard, by cycle
    std::vector<Block> blocks;
    std::vector<PageRef> pages;  // [cycle][kv_heads]; null before the block is encoded
    int64_t first_open = 0;      // earlier blocks are full and encoded
    int64_t first_exact = 0;     // earlier blocks are full and have no exact rows
  };
  struct Layer {
    std::vector<ShardBlocks> shards;  // by virtual shard, from FirstShard(slot) on
    int64_t tokens = 0;
    int64_t gone = 0;  // blocks of the sequence before this one have no exact rows on any rank
    PageRef sinks;
    std::vector<PageRef> stats;  // [prefix_blocks] rows that the sums were taken from
    std::vector<std::vector<float>>
        sums;  // [prefix_blocks][kv_heads * SumFloats()], empty: none seen
    std::shared_ptr<const std::vector<float>> state;  // [kv_heads][StateFloats()]
  };
  // Part of an Append that falls into one block.
  struct Piece {
    int64_t row = 0, count = 0;  // of the caller's rows
    int64_t block = 0;           // of the sequence
    int first = 0;               // slot of the first row
    Block* target = nullptr;
    PageRef* pages = nullptr;  // [kv_heads]
    KvCounters counted = {};
    Error error = {};
  };
  // Slots of a block to encode.
  struct EncodeTask {
    int64_t block = 0;
    Block* target = nullptr;
    PageRef* pages = nullptr;  // [kv_heads]
    int first = 0, count = 0;
    int64_t shared_bytes = 0;  // what the page of head 0 must have
    KvCounters counted = {};
    Error error = {};
  };
  // What the codec is told about a task; args point into the rest. Of the thread that runs it.
  struct TaskArgs {
    std::vector<float> k, v;
    std::vector<uint8_t*> pages;
    EncodeArgs args;
  };

  // Sizes.
  int64_t block_tokens() const { return shape_.block_tokens; }
  int64_t KeyRow() const { return static_cast<int64_t>(shape_.kv_heads) * shape_.dk; }
  int64_t ValueRow() const { return static_cast<int64_t>(shape_.kv_heads) * shape_.dv; }
  int64_t QueryRow() const { return static_cast<int64_t>(shape_.query_heads) * shape_.dk; }
  int64_t SumRow() const { return shape_.kv_heads * codec_->SumFloats(); }
  bool Gathers(int64_t block, const Layer& layer) const {
    return sizes_.stats > 0 && block < prefix_blocks() && !layer.state;
  }
  bool Ready(const Layer& layer) const { return traits_.prefix_tokens == 0 || layer.state; }
  int64_t BlockIndex(int run_index, int64_t cycle) const {
    return map_.Token(first_shard_ + run_index, cycle * block_tokens()) / block_tokens();
  }
  // Tables of a virtual shard with room for `cycles` blocks; pointers into them end here.
  void ResizeTables(ShardBlocks& shard, size_t cycles) const {
    shard.blocks.resize(cycles);
    shard.pages.resize(cycles * static_cast<size_t>(shape_.kv_heads));
  }
  template <class Shard>
  auto* PagesOf(Shard& shard, size_t cycle) const {
    return shard.pages.data() + cycle * static_cast<size_t>(shape_.kv_heads);
  }
  // Parts of slots.
  static Half* Halves(const PageRef& slot) { return reinterpret_cast<Half*>(slot.data()); }
  Half* ExactV(const PageRef& exact) const { return Halves(exact) + block_tokens() * KeyRow(); }
  Half* SinkV(const PageRef& sinks) const { return Halves(sinks) + traits_.sink_tokens * KeyRow(); }
  Half* StatsQ(const PageRef& stats) const { return Halves(stats) + block_tokens() * KeyRow(); }

  void Count(int layer, const KvCounters& counted);
  void ShowExact(const Block& block, int head, PageView& view) const;
  void ShowSinks(const Layer& layer, int head, PageView& view) const;

  // Slots, counted in bytes_; those of pages in page_bytes_ too.
  absl::Status Allocate(int64_t bytes, PageRef& slot);
  void Release(PageRef& slot);
  absl::Status AllocatePage(int64_t bytes, PageRef& page);
  void ReleasePage(PageRef& page);
  absl::Status GrowPage(int64_t bytes, PageRef& page);
  void ReleasePages(Block& block, PageRef* pages);
  absl::Status MakeUnique(PageRef& slot);  // a copy of its own when it is shared
  absl::Status EnsureOwn(int64_t bytes, PageRef& slot, std::vector<PageRef*>& made);
  absl::Status EnsurePages(int layer, PageRef* pages);

  // Append.
  absl::Status CheckRows(int layer, const AppendRows& rows) const;
  absl::Status CutPieces(int layer, const AppendRows& rows, std::vector<Piece>& pieces) const;
  absl::Status ReserveSlots(int layer, std::vector<Piece>& pieces);
  absl::Status ReservePiece(int layer, Piece& piece, std::vector<PageRef*>& made);
  void FillAngles(int layer, const AppendRows& rows);
  void StorePiece(int layer, const AppendRows& rows, Piece& piece);
  void StoreExact(Layer& layer, const float* k, const float* v, Piece& piece);
  Error EncodeLossless(int layer, const float* k, const float* v, Piece& piece);
  void Gather(int layer, const AppendRows& rows, const Piece& piece);
  void ObserveRows(int layer, int64_t block, int first, int count);

  // Encode.
  void CollectReady(Layer& layer, std::vector<EncodeTask>& tasks);
  absl::Status RunTasks(int layer, std::vector<EncodeTask>& tasks);
  absl::Status GrowPages(int layer, std::vector<EncodeTask>& tasks);
  void ArgsOf(int layer, EncodeTask& task, TaskArgs& to) const;
  void RunTask(int layer, EncodeTask& task) const;
  void DropExact(Layer& layer, int64_t kept);
  void DropStatistics(Layer& layer);

  // Cut.
  bool CutWorks(int64_t length) const;
  absl::Status CheckCut(int64_t length) const;
  absl::Status Cut(int64_t length);
  absl::Status CutLayer(int layer, int64_t length);
  void CutBlock(Block& block, PageRef* pages, int tokens);
  void CutStatistics(int layer, int64_t length);
  void Unfreeze(Layer& layer);

  std::shared_ptr<const Codec> codec_;
  CodecTraits traits_;
  KvShape shape_;
  std::vector<const RopeTable*> rope_;
  VisibilityRule rule_;
  PagePool* pool_;
  ShardMap map_;
  int slot_, first_shard_;
  SlotSizes sizes_;
  std::vector<Layer> layers_;
  std::vector<float> no_sums_;  // [kv_heads * SumFloats()] zeros
  int64_t length_ = 0, bytes_ = 0, page_bytes_ = 0;
  KvCounters counters_;
  std::vector<KvCounters> layer_counters_;

  // Angles of the last Append: a step appends the same positions in every layer, and most models have one table.
  const RopeTable* angles_table_ = nullptr;
  std::vector<int64_t> angles_positions_;
  std::vector<float> angles_;  // [n][planes][2]

  // Of the call under way; kept so that a step needs no memory.
  std::vector<Piece> pieces_;
  std::vector<EncodeTask> tasks_;
  std::vector<PageRef*> made_;
};

}  // namespace kvring
