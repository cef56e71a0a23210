// SPDX-License-Identifier: Apache-2.0
#include "kvstore/shard_io.h"

#include <algorithm>
#include <cstring>

#include "kvstore/shard_header.h"
#include "kvstore/shard_impl.h"

namespace kvring {
namespace {

constexpr char kShardMagic[] = "KVRSHARD";
constexpr char kStateMagic[] = "KVRSTATE";

enum Part : uint32_t { kExactRows = 1, kPages = 2, kStatistics = 4, kSinks = 8 };

struct BlockHead {
  uint32_t tokens = 0, encoded = 0, exact_first = 0, parts = 0;
};

void AppendBytes(std::vector<uint8_t>& out, const void* data, int64_t bytes) {
  const auto* const from = static_cast<const uint8_t*>(data);
  out.insert(out.end(), from, from + bytes);
}

absl::StatusOr<const SequenceShardImpl*> Implementation(const SequenceShard& shard) {
  const auto* const impl = dynamic_cast<const SequenceShardImpl*>(&shard);
  if (impl == nullptr) return absl::InvalidArgumentError("this kind of shard has no bytes");
  return impl;
}

}  // namespace

// Reads what a shard holds, for both directions; friend of the shard.
class ShardWriter {
 public:
  explicit ShardWriter(const SequenceShardImpl& shard) : s_(shard) {}

  ShardHeader Header(const char* magic, const std::string& order) const {
    ShardHeader header;
    header.magic = magic;
    header.length = s_.length_;
    header.shape = s_.shape_;
    header.virtual_shards = s_.map_.virtual_shards();
    header.codec_version = s_.traits_.version;
    header.rule = s_.rule_;
    header.gone = s_.layers_[0].gone;
    header.frozen = s_.layers_[0].state != nullptr;
    header.tables_hash = s_.traits_.tables_hash;
    header.codec_id = s_.traits_.id;
    header.order = order;
    return header;
  }

  absl::Status CheckSelfContained() const {
    if (!s_.traits_.shared_page) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat(
        "pages of codec ", s_.traits_.id,
        " are not self-contained: a head is read together with head 0. They are neither stored nor "
        "sent; the form with slots in each page (without :exact, :token, :paper) is"));
  }

  absl::Status CheckAtRest() const {
    const int64_t tokens = s_.map_.SlotTokens(s_.slot_, s_.length_);
    for (const auto& layer : s_.layers_) {
      if (layer.tokens != tokens || layer.gone != s_.layers_[0].gone ||
          (layer.state == nullptr) != (s_.layers_[0].state == nullptr)) {
        return absl::FailedPreconditionError("a shard is exported between steps, not within one");
      }
    }
    return absl::OkStatus();
  }

  std::vector<uint8_t> Payload(int run_index) const {
    std::vector<uint8_t> out;
    for (const auto& layer : s_.layers_) {
      const auto& shard = layer.shards[run_index];
      const auto& blocks = shard.blocks;
      for (size_t cycle = 0; cycle < blocks.size(); ++cycle) {
        if (blocks[cycle].tokens == 0) continue;
        const int layer_index = static_cast<int>(&layer - s_.layers_.data());
        const int64_t index = s_.BlockIndex(run_index, static_cast<int64_t>(cycle));
        WriteBlock(layer_index, index, blocks[cycle], s_.PagesOf(shard, cycle), out);
      }
    }
    return out;
  }

  std::vector<uint8_t> StatePayload() const {
    std::vector<uint8_t> out;
    for (const auto& layer : s_.layers_) {
      for (const float value : *layer.state) {
        const Half half = FloatToHalf(value);
        AppendBytes(out, &half, sizeof(half));
      }
    }
    return out;
  }

 private:
  void WriteBlock(int layer_index, int64_t index, const SequenceShardImpl::Block& block,
                  const PageRef* pages, std::vector<uint8_t>& out) const {
    const auto& layer = s_.layers_[layer_index];
    const bool stats = index < s_.prefix_blocks() && layer.stats[index];
    const bool sinks = index == 0 && layer.sinks;
    BlockHead head{static_cast<uint32_t>(block.tokens), static_cast<uint32_t>(block.encoded),
                   static_cast<uint32_t>(block.exact ? block.exact_first : 0),
                   (block.exact ? kExactRows : 0u) | (pages[0] ? kPages : 0u) |
                       (stats ? kStatistics : 0u) | (sinks ? kSinks : 0u)};
    AppendBytes(out, &head, sizeof(head));
    if (block.exact) {
      const int64_t rows = block.tokens - block.exact_first;
      WriteRows(SequenceShardImpl::Halves(block.exact) + block.exact_first * s_.KeyRow(),
                rows * s_.KeyRow(), out);
      WriteRows(s_.ExactV(block.exact) + block.exact_first * s_.ValueRow(), rows * s_.ValueRow(),
                out);
    }
    for (int h = 0; pages[0] && h < s_.shape_.kv_heads; ++h) {
      AppendBytes(out, pages[h].data(), s_.codec_->PageSize(layer_index, h).total());
    }
    if (stats) {
      WriteRows(SequenceShardImpl::Halves(layer.stats[index]), block.tokens * s_.KeyRow(), out);
      WriteRows(s_.StatsQ(layer.stats[index]), block.tokens * s_.QueryRow(), out);
    }
    if (sinks) {
      const int64_t rows = std::min(s_.traits_.sink_tokens, block.tokens);
      WriteRows(SequenceShardImpl::Halves(layer.sinks), rows * s_.KeyRow(), out);
      WriteRows(s_.SinkV(layer.sinks), rows * s_.ValueRow(), out);
    }
  }

  static void WriteRows(const Half* rows, int64_t count, std::vector<uint8_t>& out) {
    AppendBytes(out, rows, count * static_cast<int64_t>(sizeof(Half)));
  }

  const SequenceShardImpl& s_;
};

// Puts a payload into an empty virtual shard; friend of the shard. After an error Undo gives back what was taken.
class ShardReader {
 public:
  ShardReader(SequenceShardImpl& shard, std::span<const uint8_t> payload)
      : s_(shard), rest_(payload) {}

  absl::Status Check(const ShardHeader& header) const {
    KVRING_ASSIGN_OR_RETURN(const int run_index, s_.RunIndex(header.virtual_shard));
    if (header.length < 0 || header.gone < 0) return absl::DataLossError("negative length");
    if (s_.length_ != 0 && s_.length_ != header.length) {
      return absl::FailedPreconditionError(absl::StrCat("virtual shard of ", header.length,
                                                        " tokens in a sequence of ", s_.length_));
    }
    for (const auto& layer : s_.layers_) {
      if (!layer.shards[run_index].blocks.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("virtual shard ", header.virtual_shard, " is not empty here"));
      }
      if (layer.tokens > 0 && layer.gone != header.gone) {
        return absl::FailedPreconditionError("virtual shards of two different moments");
      }
    }
    return absl::OkStatus();
  }

  absl::Status Read(const ShardHeader& header) {
    const int run_index = header.virtual_shard - s_.first_shard_;
    const int64_t tokens = s_.map_.ShardTokens(header.virtual_shard, header.length);
    const int64_t smallest = CeilDiv(tokens, s_.block_tokens()) *
                             static_cast<int64_t>(sizeof(BlockHead) * s_.layers_.size());
    if (smallest > static_cast<int64_t>(rest_.size())) return Damaged("fewer blocks than tokens");
    for (int layer = 0; layer < s_.shape_.layers; ++layer) {
      auto& shard = s_.layers_[layer].shards[run_index];
      auto& blocks = shard.blocks;
      s_.ResizeTables(shard, static_cast<size_t>(CeilDiv(tokens, s_.block_tokens())));
      for (size_t cycle = 0; cycle < blocks.size(); ++cycle) {
        const int64_t left = tokens - static_cast<int64_t>(cycle) * s_.block_tokens();
        const int64_t index = s_.BlockIndex(run_index, static_cast<int64_t>(cycle));
        KVRING_RETURN_IF_ERROR(ReadBlock(layer, index, std::min(left, s_.block_tokens()),
                                         blocks[cycle], s_.PagesOf(shard, cycle)));
      }
    }
    if (!rest_.empty()) return Damaged("more bytes than blocks");
    for (auto& layer : s_.layers_) {
      layer.tokens += tokens;
      layer.gone = header.gone;
    }
    s_.length_ = header.length;
    return absl::OkStatus();
  }

  void Undo(const ShardHeader& header) {
    const int run_index = header.virtual_shard - s_.first_shard_;
    for (auto& layer : s_.layers_) {
      auto& shard = layer.shards[run_index];
      for (size_t cycle = 0; cycle < shard.blocks.size(); ++cycle) {
        s_.Release(shard.blocks[cycle].exact);
        s_.ReleasePages(shard.blocks[cycle], s_.PagesOf(shard, cycle));
      }
      s_.ResizeTables(shard, 0);
      for (int64_t b = 0; b < s_.prefix_blocks(); ++b) {
        if (s_.map_.Shard(b * s_.block_tokens()) != header.virtual_shard) continue;
        s_.Release(layer.stats[b]);
        layer.sums[b].clear();
      }
      if (s_.map_.Shard(0) == header.virtual_shard) s_.Release(layer.sinks);
    }
  }

 private:
  static absl::Status Damaged(const char* what) {
    return absl::DataLossError(absl::StrCat("bytes of a KV shard: ", what));
  }

  // The parts that a block may and must have: tokens are somewhere, and only where the codec has such a place.
  absl::Status CheckHead(const BlockHead& head, int64_t index, int64_t tokens) const {
    const bool exact = head.parts & kExactRows, pages = head.parts & kPages;
    const bool known = head.parts <= (kExactRows | kPages | kStatistics | kSinks);
    const bool whole = head.encoded == head.tokens || (exact && head.exact_first <= head.encoded);
    const bool stats_place = index < s_.prefix_blocks() && s_.sizes_.stats > 0;
    const bool sinks_place = index == 0 && s_.sizes_.sinks > 0;
    if (head.tokens != tokens || head.encoded > head.tokens || head.exact_first >= head.tokens ||
        !known || !whole || (head.encoded > 0 && !pages) || (!exact && head.exact_first > 0) ||
        (exact && s_.sizes_.exact == 0) || ((head.parts & kStatistics) && !stats_place) ||
        static_cast<bool>(head.parts & kSinks) != sinks_place) {
      return Damaged("a block's head does not fit its sequence");
    }
    return absl::OkStatus();
  }

  absl::Status ReadBlock(int layer_index, int64_t index, int64_t tokens,
                         SequenceShardImpl::Block& block, PageRef* pages) {
    BlockHead head;
    KVRING_RETURN_IF_ERROR(Take(&head, sizeof(head)));
    KVRING_RETURN_IF_ERROR(CheckHead(head, index, tokens));
    block.tokens = static_cast<int>(head.tokens);
    block.encoded = static_cast<int>(head.encoded);
    block.exact_first = static_cast<int>(head.exact_first);
    auto& layer = s_.layers_[layer_index];
    if (head.parts & kExactRows) {
      KVRING_RETURN_IF_ERROR(s_.Allocate(s_.sizes_.exact, block.exact));
      const int64_t rows = block.tokens - block.exact_first;
      KVRING_RETURN_IF_ERROR(
          TakeRows(SequenceShardImpl::Halves(block.exact) + block.exact_first * s_.KeyRow(),
                   rows * s_.KeyRow()));
      KVRING_RETURN_IF_ERROR(TakeRows(s_.ExactV(block.exact) + block.exact_first * s_.ValueRow(),
                                      rows * s_.ValueRow()));
    }
    if (head.parts & kPages) {
      KVRING_RETURN_IF_ERROR(s_.EnsurePages(layer_index, pages));
      for (int h = 0; h < s_.shape_.kv_heads; ++h) {
        const int64_t bytes = s_.codec_->PageSize(layer_index, h).total();
        KVRING_RETURN_IF_ERROR(Take(pages[h].data(), bytes));
      }
    }
    if (head.parts & kStatistics)
      KVRING_RETURN_IF_ERROR(ReadStatistics(layer_index, index, tokens));
    if (head.parts & kSinks) {
      KVRING_RETURN_IF_ERROR(s_.Allocate(s_.sizes_.sinks, layer.sinks));
      const int64_t rows = std::min<int64_t>(s_.traits_.sink_tokens, tokens);
      KVRING_RETURN_IF_ERROR(TakeRows(SequenceShardImpl::Halves(layer.sinks), rows * s_.KeyRow()));
      KVRING_RETURN_IF_ERROR(TakeRows(s_.SinkV(layer.sinks), rows * s_.ValueRow()));
    }
    return absl::OkStatus();
  }

  // Sums are not carried: taken from the rows in token order they are the same to the bit.
  absl::Status ReadStatistics(int layer_index, int64_t index, int64_t tokens) {
    auto& layer = s_.layers_[layer_index];
    KVRING_RETURN_IF_ERROR(s_.Allocate(s_.sizes_.stats, layer.stats[index]));
    KVRING_RETURN_IF_ERROR(
        TakeRows(SequenceShardImpl::Halves(layer.stats[index]), tokens * s_.KeyRow()));
    KVRING_RETURN_IF_ERROR(TakeRows(s_.StatsQ(layer.stats[index]), tokens * s_.QueryRow()));
    layer.sums[index].assign(s_.SumRow(), 0.0f);
    s_.ObserveRows(layer_index, index, 0, static_cast<int>(tokens));
    return absl::OkStatus();
  }

  absl::Status Take(void* to, int64_t bytes) {
    if (bytes > static_cast<int64_t>(rest_.size())) return Damaged("they end within a block");
    std::memcpy(to, rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
    return absl::OkStatus();
  }
  absl::Status TakeRows(Half* rows, int64_t count) {
    return Take(rows, count * static_cast<int64_t>(sizeof(Half)));
  }

  SequenceShardImpl& s_;
  std::span<const uint8_t> rest_;
};

absl::StatusOr<std::vector<uint8_t>> ExportShard(const SequenceShard& shard, int virtual_shard,
                                                 const std::string& order) {
  KVRING_ASSIGN_OR_RETURN(const SequenceShardImpl* impl, Implementation(shard));
  const ShardWriter writer(*impl);
  KVRING_RETURN_IF_ERROR(writer.CheckSelfContained());
  KVRING_RETURN_IF_ERROR(writer.CheckAtRest());
  KVRING_ASSIGN_OR_RETURN(const int run_index, impl->RunIndex(virtual_shard));
  ShardHeader header = writer.Header(kShardMagic, order);
  header.virtual_shard = virtual_shard;
  return WithHeader(header, writer.Payload(run_index));
}

absl::Status ImportShard(std::span<const uint8_t> bytes, SequenceShard& shard,
                         const std::string& order) {
  KVRING_RETURN_IF_ERROR(Implementation(shard).status());
  auto& impl = static_cast<SequenceShardImpl&>(shard);
  KVRING_RETURN_IF_ERROR(ShardWriter(impl).CheckSelfContained());
  KVRING_ASSIGN_OR_RETURN(const ParsedShard parsed, ParseShard(bytes, kShardMagic));
  KVRING_RETURN_IF_ERROR(CheckSame(parsed.header, ShardWriter(impl).Header(kShardMagic, order)));
  ShardReader reader(impl, parsed.payload);
  KVRING_RETURN_IF_ERROR(reader.Check(parsed.header));
  const absl::Status status = reader.Read(parsed.header);
  if (!status.ok()) reader.Undo(parsed.header);
  return status;
}

absl::StatusOr<std::vector<uint8_t>> ExportState(const SequenceShard& shard) {
  KVRING_ASSIGN_OR_RETURN(const SequenceShardImpl* impl, Implementation(shard));
  const ShardWriter writer(*impl);
  KVRING_RETURN_IF_ERROR(writer.CheckAtRest());
  const ShardHeader header = writer.Header(kStateMagic, "");
  if (!header.frozen) {
    return absl::FailedPreconditionError("the sequence has no frozen state to export");
  }
  return WithHeader(header, writer.StatePayload());
}

absl::Status ImportState(std::span<const uint8_t> bytes, SequenceShard& shard) {
  KVRING_RETURN_IF_ERROR(Implementation(shard).status());
  auto& impl = static_cast<SequenceShardImpl&>(shard);
  KVRING_ASSIGN_OR_RETURN(const ParsedShard parsed, ParseShard(bytes, kStateMagic));
  KVRING_RETURN_IF_ERROR(CheckSame(parsed.header, ShardWriter(impl).Header(kStateMagic, "")));
  return impl.SetState(parsed.payload);
}

}  // namespace kvring
