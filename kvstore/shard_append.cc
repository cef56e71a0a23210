// SPDX-License-Identifier: Apache-2.0
// Rows in: checked first, then room made, then stored; a refused call has stored nothing.
#include <algorithm>
#include <cmath>

#include "kernels/convert.h"
#include "kernels/parallel.h"
#include "kvstore/shard_impl.h"

namespace kvring {
namespace {

// Beyond any activation, and far enough from the end of fp32 that no rotation or transform of such numbers overflows.
constexpr float kLargest = 0x1p100f;

// Angles are kept for the other layers when a step has at most this many tokens here; more are formed block by block.
constexpr int64_t kCachedAngles = 8192;

// Numbers whose size is not at most `limit`, NaN among them; a loop that compilers make vectors of.
int64_t CountNotBelow(const float* x, int64_t n, float limit) {
  int64_t count = 0;
  for (int64_t first = 0; first < n; first += 1 << 20) {
    int32_t some = 0;
    const int64_t end = std::min(n, first + (1 << 20));
    for (int64_t i = first; i < end; ++i) some += std::fabs(x[i]) <= limit ? 0 : 1;
    count += some;
  }
  return count;
}

absl::Status CheckFinite(const char* what, int layer, std::span<const int64_t> positions, int heads,
                         int size, const float* x) {
  const int64_t row = static_cast<int64_t>(heads) * size;
  const int64_t n = static_cast<int64_t>(positions.size()) * row;
  if (CountNotBelow(x, n, kLargest) == 0) return absl::OkStatus();
  for (int64_t i = 0; i < n; ++i) {
    if (std::fabs(x[i]) <= kLargest) continue;  // false for NaN
    return absl::InvalidArgumentError(absl::StrCat(what, " of layer ", layer, ", head ",
                                                   i % row / size, ", token ", positions[i / row],
                                                   " is ", x[i], " and cannot be stored"));
  }
  return absl::OkStatus();
}

// Numbers are finite here (CheckFinite).
void ToHalves(const float* from, int64_t n, Half* to, int64_t& clamped) {
  FloatToHalfSaturated(from, n, to);
  clamped += CountNotBelow(from, n, 65504.0f);
}

// Rows of the piece that this thread stores.
struct RowScratch {
  std::vector<float> k, v, angles;
  std::vector<uint8_t*> pages;
};
thread_local RowScratch t_rows;

}  // namespace

absl::Status SequenceShardImpl::Append(int layer, const AppendRows& rows) {
  if (rows.positions.empty()) return absl::OkStatus();
  if (layer < 0 || layer >= shape_.layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer, " of ", shape_.layers, " layers"));
  }
  KVRING_RETURN_IF_ERROR(CheckRows(layer, rows));
  KVRING_RETURN_IF_ERROR(CutPieces(layer, rows, pieces_));
  KVRING_RETURN_IF_ERROR(ReserveSlots(layer, pieces_));
  FillAngles(layer, rows);
  ParallelFor(static_cast<int64_t>(pieces_.size()),
              [&](int64_t i) { StorePiece(layer, rows, pieces_[i]); });
  for (const Piece& piece : pieces_) {
    Count(layer, piece.counted);
    if (piece.error) {
      return absl::InternalError(absl::StrCat("codec ", traits_.id, ", layer ", layer, ", block ",
                                              piece.block, ": ", piece.error.message));
    }
  }
  layers_[layer].tokens += static_cast<int64_t>(rows.positions.size());
  length_ = std::max(length_, rows.positions.back() + 1);
  return absl::OkStatus();
}

absl::Status SequenceShardImpl::CheckRows(int layer, const AppendRows& rows) const {
  if (rows.k == nullptr || rows.v == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer, ": rows without keys or values"));
  }
  KVRING_RETURN_IF_ERROR(
      CheckFinite("key", layer, rows.positions, shape_.kv_heads, shape_.dk, rows.k));
  KVRING_RETURN_IF_ERROR(
      CheckFinite("value", layer, rows.positions, shape_.kv_heads, shape_.dv, rows.v));
  if (!Gathers(rows.positions[0] / block_tokens(), layers_[layer])) return absl::OkStatus();
  if (rows.q == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer, ", token ", rows.positions[0], ": codec ", traits_.id,
                     " needs the queries of the first ", traits_.prefix_tokens, " tokens"));
  }
  return CheckFinite("query", layer, rows.positions, shape_.query_heads, shape_.dk, rows.q);
}

// Tokens of this rank come one after the other, without gaps: a token's predecessors here are counted, not searched.
absl::Status SequenceShardImpl::CutPieces(int layer, const AppendRows& rows,
                                          std::vector<Piece>& pieces) const {
  pieces.clear();
  int64_t expected = layers_[layer].tokens;
  const int64_t n = static_cast<int64_t>(rows.positions.size());
  for (int64_t row = 0; row < n;) {
    const int64_t token = rows.positions[row];
    if (token < 0 || map_.SlotOfRank(map_.Home(token)) != slot_ ||
        map_.SlotTokens(slot_, token) != expected) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layer ", layer, ": token ", token, " is not the next one of this rank, which holds ",
          expected, " of its tokens"));
    }
    Piece piece{row, 1, token / block_tokens(), static_cast<int>(token % block_tokens())};
    while (row + piece.count < n && piece.first + piece.count < block_tokens() &&
           rows.positions[row + piece.count] == token + piece.count) {
      ++piece.count;
    }
    pieces.push_back(piece);
    row += piece.count;
    expected += piece.count;
  }
  return absl::OkStatus();
}

absl::Status SequenceShardImpl::EnsureOwn(int64_t bytes, PageRef& slot,
                                          std::vector<PageRef*>& made) {
  if (slot) return MakeUnique(slot);
  KVRING_RETURN_IF_ERROR(Allocate(bytes, slot));
  made.push_back(&slot);
  return absl::OkStatus();
}

absl::Status SequenceShardImpl::ReserveSlots(int layer, std::vector<Piece>& pieces) {
  // Tables first: they move, and pieces point into them.
  for (const Piece& piece : pieces) {
    const int run_index = map_.Shard(piece.block * block_tokens()) - first_shard_;
    ShardBlocks& shard = layers_[layer].shards[run_index];
    const size_t cycle = piece.block / map_.virtual_shards();
    if (shard.blocks.size() <= cycle) ResizeTables(shard, cycle + 1);
  }
  made_.clear();
  for (Piece& piece : pieces) {
    const absl::Status status = ReservePiece(layer, piece, made_);
    if (status.ok()) continue;
    for (PageRef* slot : made_) traits_.lossless ? ReleasePage(*slot) : Release(*slot);
    return Annotate(status, absl::StrCat("layer ", layer, ", block ", piece.block));
  }
  return absl::OkStatus();
}

absl::Status SequenceShardImpl::ReservePiece(int layer, Piece& piece, std::vector<PageRef*>& made) {
  Layer& target = layers_[layer];
  const int run_index = map_.Shard(piece.block * block_tokens()) - first_shard_;
  const size_t cycle = static_cast<size_t>(piece.block / map_.virtual_shards());
  piece.target = &target.shards[run_index].blocks[cycle];
  piece.pages = PagesOf(target.shards[run_index], cycle);
  Block& block = *piece.target;
  if (traits_.lossless) {
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const bool there = static_cast<bool>(piece.pages[head]);
      const int64_t bytes = codec_->PageSize(layer, head).total();
      KVRING_RETURN_IF_ERROR(EnsureOwn(bytes, piece.pages[head], made));
      if (!there) page_bytes_ += piece.pages[head].bytes();
    }
    return absl::OkStatus();
  }
  if (!block.exact) block.exact_first = block.tokens;
  KVRING_RETURN_IF_ERROR(EnsureOwn(sizes_.exact, block.exact, made));
  if (piece.block == 0 && sizes_.sinks > 0 && piece.first < traits_.sink_tokens) {
    KVRING_RETURN_IF_ERROR(EnsureOwn(sizes_.sinks, target.sinks, made));
  }
  if (Gathers(piece.block, target)) {
    KVRING_RETURN_IF_ERROR(EnsureOwn(sizes_.stats, target.stats[piece.block], made));
    target.sums[piece.block].resize(SumRow());
  }
  return absl::OkStatus();
}

void SequenceShardImpl::FillAngles(int layer, const AppendRows& rows) {
  if (traits_.key_domain != KeyDomain::kPostRope) return;
  const RopeTable* table = rope_[layer];
  if (table == angles_table_ && std::ranges::equal(rows.positions, angles_positions_)) return;
  angles_table_ = nullptr;
  const int64_t n = static_cast<int64_t>(rows.positions.size());
  if (n > kCachedAngles) return;
  angles_table_ = table;
  angles_positions_.assign(rows.positions.begin(), rows.positions.end());
  angles_.resize(n * table->planes() * 2);
  for (int64_t i = 0; i < n; ++i) {
    RopeAngles(*table, rows.positions[i], angles_.data() + i * table->planes() * 2);
  }
}

void SequenceShardImpl::StorePiece(int layer, const AppendRows& rows, Piece& piece) {
  const float* const k_rows = rows.k + piece.row * KeyRow();
  const float* const v_rows = rows.v + piece.row * ValueRow();
  std::vector<float>&k = t_rows.k, &v = t_rows.v, &own = t_rows.angles;
  k.assign(k_rows, k_rows + piece.count * KeyRow());
  v.assign(v_rows, v_rows + piece.count * ValueRow());
  if (traits_.key_domain == KeyDomain::kPostRope) {
    const RopeTable& table = *rope_[layer];
    own.resize(table.planes() * 2);
    for (int64_t i = 0; i < piece.count; ++i) {
      const float* angles = angles_.data() + (piece.row + i) * table.planes() * 2;
      if (angles_table_ == nullptr) {
        RopeAngles(table, rows.positions[piece.row + i], own.data());
        angles = own.data();
      }
      for (int head = 0; head < shape_.kv_heads; ++head) {
        RopeRotate(table, angles, k.data() + i * KeyRow() + head * shape_.dk);
      }
    }
  }
  codec_->ToValueDomain(layer, v.data(), piece.count);
  if (traits_.lossless) {
    piece.error = EncodeLossless(layer, k.data(), v.data(), piece);
  } else {
    StoreExact(layers_[layer], k.data(), v.data(), piece);
    if (Gathers(piece.block, layers_[layer])) Gather(layer, rows, piece);
  }
  piece.target->tokens = piece.first + static_cast<int>(piece.count);
}

void SequenceShardImpl::StoreExact(Layer& layer, const float* k, const float* v, Piece& piece) {
  Block& block = *piece.target;
  Half* const exact_k = Halves(block.exact) + piece.first * KeyRow();
  Half* const exact_v = ExactV(block.exact) + piece.first * ValueRow();
  ToHalves(k, piece.count * KeyRow(), exact_k, piece.counted.clamped);
  ToHalves(v, piece.count * ValueRow(), exact_v, piece.counted.clamped);
  if (piece.block != 0 || piece.first >= traits_.sink_tokens) return;
  const int64_t sinks = std::min<int64_t>(piece.count, traits_.sink_tokens - piece.first);
  std::copy_n(exact_k, sinks * KeyRow(), Halves(layer.sinks) + piece.first * KeyRow());
  std::copy_n(exact_v, sinks * ValueRow(), SinkV(layer.sinks) + piece.first * ValueRow());
}

Error SequenceShardImpl::EncodeLossless(int layer, const float* k, const float* v, Piece& piece) {
  std::vector<uint8_t*>& pages = t_rows.pages;
  pages.clear();
  for (int head = 0; head < shape_.kv_heads; ++head) pages.push_back(piece.pages[head].data());
  EncodeArgs args;
  args.layer = layer;
  args.block_begin = piece.block * block_tokens();
  args.first = piece.first;
  args.count = static_cast<int>(piece.count);
  args.k = k;
  args.v = v;
  args.pages = pages.data();
  args.saturated = &piece.counted.saturated;
  args.overflow = &piece.counted.overflow;
  const Error error = codec_->Encode(args);
  if (!error) piece.target->encoded = args.first + args.count;
  return error;
}

// Statistics see what fp16 keeps of the rows. They are kept, for a cut inside the prefix.
void SequenceShardImpl::Gather(int layer, const AppendRows& rows, const Piece& piece) {
  const PageRef& stats = layers_[layer].stats[piece.block];
  int64_t ignored = 0;  // the same numbers are counted where they are stored
  ToHalves(rows.k + piece.row * KeyRow(), piece.count * KeyRow(),
           Halves(stats) + piece.first * KeyRow(), ignored);
  ToHalves(rows.q + piece.row * QueryRow(), piece.count * QueryRow(),
           StatsQ(stats) + piece.first * QueryRow(), ignored);
  ObserveRows(layer, piece.block, piece.first, static_cast<int>(piece.count));
}

void SequenceShardImpl::ObserveRows(int layer, int64_t block, int first, int count) {
  Layer& target = layers_[layer];
  const Half* const stats_k = Halves(target.stats[block]) + first * KeyRow();
  const Half* const stats_q = StatsQ(target.stats[block]) + first * QueryRow();
  // Values are not kept twice: exact rows of the prefix stay at least as long as its statistics.
  const int run_index = map_.Shard(block * block_tokens()) - first_shard_;
  const Block& rows = target.shards[run_index].blocks[block / map_.virtual_shards()];
  const Half* const exact_v = ExactV(rows.exact) + first * ValueRow();
  std::vector<float> k(count * KeyRow()), q(count * QueryRow()), v(count * ValueRow());
  HalfToFloat(exact_v, static_cast<int64_t>(v.size()), v.data());
  HalfToFloat(stats_k, static_cast<int64_t>(k.size()), k.data());
  HalfToFloat(stats_q, static_cast<int64_t>(q.size()), q.data());
  ObserveArgs args;
  args.layer = layer;
  args.begin = block * block_tokens() + first;
  args.count = count;
  args.k = k.data();
  args.q = q.data();
  args.v = v.data();
  codec_->Observe(args, target.sums[block].data());
}

}  // namespace kvring
