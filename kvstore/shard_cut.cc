// SPDX-License-Identifier: Apache-2.0
// Fork and truncate. What a cut needs is decided from lengths alone, the same on every rank; then each block is cut.
#include <algorithm>

#include "kvstore/shard_impl.h"

namespace kvring {

// The shorter sequence reads exact rows from FirstKeptBlock(length) on; what is gone must lie before that.
bool SequenceShardImpl::CutWorks(int64_t length) const {
  if (length >= length_) return true;
  int64_t gone = 0;
  bool frozen = traits_.prefix_tokens == 0;
  for (const Layer& layer : layers_) {
    gone = std::max(gone, layer.gone);
    frozen = frozen || layer.state != nullptr;
  }
  frozen = frozen && length >= traits_.prefix_tokens;
  const int64_t blocks = CeilDiv(length, block_tokens());
  const int64_t kept = FirstKeptBlock(traits_, rule_, shape_.block_tokens, length, frozen);
  return kept >= std::min(gone, blocks);
}

absl::Status SequenceShardImpl::CheckCut(int64_t length) const {
  if (length < 0 || length > length_) {
    return absl::InvalidArgumentError(
        absl::StrCat("cut to ", length, " tokens of a sequence of ", length_));
  }
  if (CutWorks(length)) return absl::OkStatus();
  int64_t below = length, above = length;  // 0 and length_ work always
  while (!CutWorks(below)) --below;
  while (!CutWorks(above)) ++above;
  return absl::FailedPreconditionError(
      absl::StrCat("cut to ", length,
                   " tokens: exact rows that the shorter sequence reads are gone; nearest "
                   "lengths that work: ",
                   below, " and ", above));
}

absl::StatusOr<std::unique_ptr<SequenceShard>> SequenceShardImpl::Fork(int64_t length) const {
  KVRING_RETURN_IF_ERROR(CheckCut(length));
  auto fork = std::make_unique<SequenceShardImpl>(*this);
  KVRING_RETURN_IF_ERROR(fork->Cut(length));
  return fork;
}

absl::Status SequenceShardImpl::Truncate(int64_t length) {
  KVRING_RETURN_IF_ERROR(CheckCut(length));
  return Cut(length);
}

// An error (the pool is full: shared pages are encoded anew) leaves the shard unusable; only its bytes still count.
absl::Status SequenceShardImpl::Cut(int64_t length) {
  if (length == length_) return absl::OkStatus();
  for (int layer = 0; layer < shape_.layers; ++layer) {
    KVRING_RETURN_IF_ERROR(Annotate(CutLayer(layer, length), absl::StrCat("cut to ", length)));
  }
  length_ = length;
  return absl::OkStatus();
}

absl::Status SequenceShardImpl::CutLayer(int layer, int64_t length) {
  Layer& target = layers_[layer];
  if (target.state && length < traits_.prefix_tokens) Unfreeze(target);
  std::vector<EncodeTask> again;
  target.tokens = 0;
  for (size_t run_index = 0; run_index < target.shards.size(); ++run_index) {
    ShardBlocks& shard = target.shards[run_index];
    for (size_t cycle = 0; cycle < shard.blocks.size(); ++cycle) {
      Block& block = shard.blocks[cycle];
      const int64_t index = BlockIndex(static_cast<int>(run_index), static_cast<int64_t>(cycle));
      const int tokens =
          static_cast<int>(std::clamp<int64_t>(length - index * block_tokens(), 0, block.tokens));
      const bool encoded = tokens < block.tokens && block.encoded > 0;
      PageRef* const pages = PagesOf(shard, cycle);
      CutBlock(block, pages, tokens);
      target.tokens += tokens;
      if (!encoded || tokens == 0 || block.encoded > 0 || traits_.page_scoped()) continue;
      const int first = index == 0 ? std::min(traits_.sink_tokens, tokens) : 0;
      again.push_back({index, &block, pages, first, tokens - first});
    }
    const int64_t cycles = CeilDiv(CeilDiv(length, block_tokens()), map_.virtual_shards());
    if (static_cast<int64_t>(shard.blocks.size()) > cycles)
      ResizeTables(shard, static_cast<size_t>(cycles));
    // The last cycle may hold a block that is open now; earlier ones are as they were.
    shard.first_open = std::min(shard.first_open, std::max<int64_t>(0, cycles - 1));
    shard.first_exact = std::min(shard.first_exact, std::max<int64_t>(0, cycles - 1));
  }
  if (length == 0) Release(target.sinks);
  CutStatistics(layer, length);
  target.gone = std::min(target.gone, CeilDiv(length, block_tokens()));
  return RunTasks(layer, again);
}

// Pages of a block that loses tokens: gone when they have page-wide parameters, or when the exact rows are there to make
// them anew (so that they equal those of a sequence that never was longer); else slots beyond the cut stay as they are.
void SequenceShardImpl::CutBlock(Block& block, PageRef* pages, int tokens) {
  if (tokens == block.tokens) return;
  const bool whole_rows = block.exact && block.exact_first == 0;
  block.tokens = tokens;
  if (tokens == 0 || traits_.page_scoped() || whole_rows) ReleasePages(block, pages);
  block.encoded = std::min(block.encoded, tokens);
  if (block.exact && tokens <= block.exact_first) Release(block.exact);
}

void SequenceShardImpl::CutStatistics(int layer, int64_t length) {
  Layer& target = layers_[layer];
  for (int64_t b = 0; b < prefix_blocks(); ++b) {
    const int64_t tokens = std::clamp<int64_t>(length - b * block_tokens(), 0, block_tokens());
    if (tokens == block_tokens() || !target.stats[b]) continue;
    std::vector<float>().swap(target.sums[b]);
    if (tokens == 0) {
      Release(target.stats[b]);
      continue;
    }
    target.sums[b].resize(SumRow());
    ObserveRows(layer, b, 0, static_cast<int>(tokens));
  }
}

// Back to before the prefix was complete: everything is exact again. Only done while all exact rows exist.
void SequenceShardImpl::Unfreeze(Layer& layer) {
  layer.state = nullptr;
  bytes_ -= sizes_.state;
  for (ShardBlocks& shard : layer.shards) {
    for (size_t cycle = 0; cycle < shard.blocks.size(); ++cycle)
      ReleasePages(shard.blocks[cycle], PagesOf(shard, cycle));
    shard.first_open = 0;
  }
}

}  // namespace kvring
