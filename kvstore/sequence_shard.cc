// SPDX-License-Identifier: Apache-2.0
#include "kvstore/sequence_shard.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kvstore/shard_impl.h"

namespace kvring {
namespace {

absl::Status CheckShape(const KvShape& shape, const ShardMap& map) {
  if (shape.layers < 1 || shape.kv_heads < 1 || shape.query_heads < shape.kv_heads ||
      shape.query_heads % shape.kv_heads != 0 || shape.dk < 1 || shape.dv < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV shape with ", shape.layers, " layers, ", shape.query_heads, " query heads, ",
        shape.kv_heads, " KV heads, head sizes ", shape.dk, " and ", shape.dv));
  }
  if (shape.block_tokens != map.block_tokens()) {
    return absl::InvalidArgumentError(absl::StrCat("blocks of ", shape.block_tokens,
                                                   " tokens in the KV shape, of ",
                                                   map.block_tokens(), " in the layout"));
  }
  return absl::OkStatus();
}

// The first lines of a table; a longer one is followed by the processor itself.
template <class Entry>
void FetchTable(const std::vector<Entry>& table) {
  constexpr size_t kLine = 64, kMost = 4096;
  const char* const begin = reinterpret_cast<const char*>(table.data());
  const size_t bytes = std::min(kMost, table.size() * sizeof(Entry));
  for (size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(begin + at);
}

absl::Status CheckTraits(const CodecTraits& traits, const KvShape& shape) {
  if (traits.prefix_tokens % shape.block_tokens != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec ", traits.id, " has a prefix of ", traits.prefix_tokens,
                     " tokens, which is no multiple of the block of ", shape.block_tokens));
  }
  if (traits.sink_tokens > shape.block_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("codec ", traits.id, " protects ",
                                                   traits.sink_tokens, " tokens, a block has ",
                                                   shape.block_tokens));
  }
  if (traits.lossless &&
      (traits.page_scoped() || traits.prefix_tokens > 0 || traits.sink_tokens > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "codec ", traits.id, " is lossless and yet has sinks or parameters of pages or a prefix"));
  }
  if (traits.growing_page && (traits.lossless || !traits.shared_page)) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec ", traits.id,
                     " has growing pages, and is lossless or does not read the page of head 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceShard>> SequenceShard::Create(
    const SequenceShardOptions& options, const ShardMap& map) {
  if (!options.codec || options.pool == nullptr) {
    return absl::InvalidArgumentError("a sequence's shard needs a codec and a pool");
  }
  KVRING_RETURN_IF_ERROR(CheckShape(options.shape, map));
  KVRING_RETURN_IF_ERROR(CheckTraits(options.codec->traits(), options.shape));
  if (options.rank < 0 || options.rank >= map.ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of ", map.ranks(), " ranks"));
  }
  if (options.rule.kind == Visibility::kExactCell &&
      (options.rule.cell < 1 || options.rule.cell % map.block_tokens() != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("a cell of ", options.rule.cell,
                                                   " tokens is no multiple of the block of ",
                                                   map.block_tokens()));
  }
  if (options.codec->traits().key_domain == KeyDomain::kPostRope &&
      static_cast<int>(options.rope.size()) != options.shape.layers) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.rope.size(), " RoPE tables for ", options.shape.layers, " layers"));
  }
  return std::make_unique<SequenceShardImpl>(options, map);
}

SequenceShardImpl::SequenceShardImpl(const SequenceShardOptions& options, const ShardMap& map)
    : codec_(options.codec),
      traits_(options.codec->traits()),
      shape_(options.shape),
      rope_(options.rope),
      rule_(options.rule),
      pool_(options.pool),
      map_(map),
      slot_(map.SlotOfRank(options.rank)),
      first_shard_(map.FirstShard(slot_)),
      sizes_(*options.codec, options.shape),
      layers_(options.shape.layers),
      no_sums_(SumRow()),
      layer_counters_(options.shape.layers) {
  for (Layer& layer : layers_) {
    layer.shards.resize(map.FirstShard(slot_ + 1) - first_shard_);
    layer.stats.resize(prefix_blocks());
    layer.sums.resize(prefix_blocks());
  }
}

absl::Status SequenceShardImpl::Allocate(int64_t bytes, PageRef& slot) {
  KVRING_ASSIGN_OR_RETURN(slot, pool_->Allocate(bytes));
  bytes_ += slot.bytes();
  return absl::OkStatus();
}

void SequenceShardImpl::Release(PageRef& slot) {
  bytes_ -= slot.bytes();
  slot = PageRef();
}

absl::Status SequenceShardImpl::AllocatePage(int64_t bytes, PageRef& page) {
  KVRING_RETURN_IF_ERROR(Allocate(bytes, page));
  page_bytes_ += page.bytes();
  return absl::OkStatus();
}

void SequenceShardImpl::ReleasePage(PageRef& page) {
  page_bytes_ -= page.bytes();
  Release(page);
}

// Slots are zeroed and have no other owner when they are new, so a page that is shared with a fork gets its copy here.
absl::Status SequenceShardImpl::GrowPage(int64_t bytes, PageRef& page) {
  if (bytes <= page.bytes()) return absl::OkStatus();
  PageRef larger;
  KVRING_RETURN_IF_ERROR(AllocatePage(bytes, larger));
  std::memcpy(larger.data(), page.data(), page.bytes());
  ReleasePage(page);
  page = std::move(larger);
  return absl::OkStatus();
}

void SequenceShardImpl::Count(int layer, const KvCounters& counted) {
  for (KvCounters* to : {&counters_, &layer_counters_[layer]}) {
    to->saturated += counted.saturated;
    to->overflow += counted.overflow;
    to->clamped += counted.clamped;
  }
}

void SequenceShardImpl::ReleasePages(Block& block, PageRef* pages) {
  for (int head = 0; head < shape_.kv_heads; ++head) ReleasePage(pages[head]);
  block.encoded = 0;
}

absl::Status SequenceShardImpl::MakeUnique(PageRef& slot) {
  if (slot.unique()) return absl::OkStatus();
  KVRING_ASSIGN_OR_RETURN(PageRef own, pool_->Allocate(slot.bytes()));
  std::memcpy(own.data(), slot.data(), slot.bytes());
  slot = std::move(own);
  return absl::OkStatus();
}

absl::Status SequenceShardImpl::EnsurePages(int layer, PageRef* pages) {
  for (int head = 0; head < shape_.kv_heads; ++head) {
    PageRef& page = pages[head];
    KVRING_RETURN_IF_ERROR(page ? MakeUnique(page)
                                : AllocatePage(codec_->PageSize(layer, head).total(), page));
  }
  return absl::OkStatus();
}

const float* SequenceShardImpl::BlockSums(int layer, int64_t block) const {
  if (block < 0 || block >= prefix_blocks()) return no_sums_.data();
  const std::vector<float>& sums = layers_[layer].sums[block];
  return sums.empty() ? no_sums_.data() : sums.data();
}

absl::Status SequenceShardImpl::Freeze(int layer, const float* sums) {
  Layer& target = layers_[layer];
  if (traits_.prefix_tokens == 0 || target.state) {
    return absl::FailedPreconditionError(
        absl::StrCat("codec ", traits_.id, ", layer ", layer,
                     target.state ? ": already frozen" : ": has no state of a sequence"));
  }
  if (target.tokens < map_.SlotTokens(slot_, traits_.prefix_tokens)) {
    return absl::FailedPreconditionError(absl::StrCat("layer ", layer,
                                                      ": frozen before all of its ",
                                                      traits_.prefix_tokens, " tokens are there"));
  }
  auto state = std::make_shared<std::vector<float>>(shape_.kv_heads * codec_->StateFloats());
  std::vector<const float*> blocks(prefix_blocks());
  for (int head = 0; head < shape_.kv_heads; ++head) {
    for (size_t b = 0; b < blocks.size(); ++b) {
      blocks[b] = sums + static_cast<int64_t>(b) * SumRow() + head * codec_->SumFloats();
    }
    codec_->Freeze(layer, head, blocks, state->data() + head * codec_->StateFloats());
  }
  for (const float value : *state) {
    if (!std::isfinite(value)) {
      return absl::InternalError(absl::StrCat("codec ", traits_.id, ", layer ", layer,
                                              ": the sequence's state is not finite"));
    }
  }
  target.state = std::move(state);
  bytes_ += sizes_.state;
  return absl::OkStatus();
}

const float* SequenceShardImpl::State(int layer, int head) const {
  const Layer& source = layers_[layer];
  return source.state ? source.state->data() + head * codec_->StateFloats() : nullptr;
}

void SequenceShardImpl::SetLength(int64_t length) { length_ = std::max(length_, length); }

absl::StatusOr<int> SequenceShardImpl::RunIndex(int virtual_shard) const {
  const int run_index = virtual_shard - first_shard_;
  if (run_index >= 0 && run_index < static_cast<int>(layers_[0].shards.size())) return run_index;
  return absl::InvalidArgumentError(
      absl::StrCat("virtual shard ", virtual_shard, " does not live on this rank"));
}

absl::Status SequenceShardImpl::SetState(std::span<const uint8_t> halves) {
  const int64_t floats = shape_.kv_heads * codec_->StateFloats();
  if (static_cast<int64_t>(halves.size()) != floats * shape_.layers * 2) {
    return absl::DataLossError(absl::StrCat("a sequence's state of ", halves.size(), " bytes, not ",
                                            floats * shape_.layers * 2));
  }
  for (const Layer& layer : layers_) {
    if (layer.state) return absl::FailedPreconditionError("the sequence has its state already");
  }
  const uint8_t* from = halves.data();
  for (Layer& layer : layers_) {
    auto state = std::make_shared<std::vector<float>>(floats);
    for (float& value : *state) {
      Half half;
      std::memcpy(&half, from, sizeof(half));
      value = HalfToFloat(half);
      from += sizeof(half);
    }
    layer.state = std::move(state);
    bytes_ += sizes_.state;
  }
  return absl::OkStatus();
}

// The tables of the virtual shard behind this one are asked for: it is the one that attention reads next.
void SequenceShardImpl::Pages(int layer, int head, int virtual_shard,
                              std::vector<PageView>& pages) const {
  const Layer& source = layers_[layer];
  const int run_index = virtual_shard - first_shard_;
  const int shards = static_cast<int>(source.shards.size());
  if (run_index < 0 || run_index >= shards) return;
  const ShardBlocks& shard = source.shards[run_index];
  if (run_index + 1 < shards) {
    FetchTable(source.shards[run_index + 1].blocks);
    FetchTable(source.shards[run_index + 1].pages);
  }
  const int64_t step = map_.virtual_shards() * block_tokens();  // between blocks of a virtual shard
  PageView view;
  view.begin = map_.Token(virtual_shard, 0);
  const size_t cycles = shard.blocks.size();
  pages.reserve(pages.size() + cycles);
  for (size_t cycle = 0; cycle < cycles; ++cycle, view.begin += step) {
    const Block& block = shard.blocks[cycle];
    if (block.tokens == 0) continue;
    view.tokens = block.tokens;
    const PageRef* const heads = PagesOf(shard, cycle);
    const bool packed = block.encoded == block.tokens;
    view.packed = packed ? heads[head].data() : nullptr;
    view.shared = packed ? heads[0].data() : nullptr;
    pages.push_back(view);
    if (block.exact && block.exact_first == 0) ShowExact(block, head, pages.back());
    if (view.begin == 0 && source.sinks) ShowSinks(source, head, pages.back());
  }
}

void SequenceShardImpl::ShowExact(const Block& block, int head, PageView& view) const {
  view.exact_k = Halves(block.exact) + head * shape_.dk;
  view.exact_v = ExactV(block.exact) + head * shape_.dv;
  view.exact_k_stride = KeyRow();
  view.exact_v_stride = ValueRow();
}

void SequenceShardImpl::ShowSinks(const Layer& layer, int head, PageView& view) const {
  view.sinks = std::min(traits_.sink_tokens, view.tokens);
  view.sink_k = Halves(layer.sinks) + head * shape_.dk;
  view.sink_v = SinkV(layer.sinks) + head * shape_.dv;
  view.sink_k_stride = KeyRow();
  view.sink_v_stride = ValueRow();
}

}  // namespace kvring
