// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/synthetic_context.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "kvstore/shard_header.h"
#include "kvstore/shard_io.h"
#include "runtime/engine/sampler.h"

namespace kvring {
namespace {

constexpr char kShardMagic[] = "KVRSHARD";
constexpr int64_t kTableFloats = int64_t{1} << 22;  // at least; and more than twice a chunk's rows
constexpr int64_t kBlockHeadBytes = 16;  // of a block in a shard's payload (kvstore/shard_io.h)

// The payload of a virtual shard of `tokens` tokens, whose blocks repeat those of a short one. Its first block comes once: in
// the shard of the sequence's beginning it holds the sinks.
std::vector<uint8_t> RepeatBlocks(std::span<const uint8_t> from, const Codec& codec,
                                  const KvShape& shape, int64_t from_blocks, int64_t to_blocks) {
  int64_t plain = 0;  // bytes of all layers' blocks but for what the first one has more
  std::vector<int64_t> block_bytes(shape.layers, kBlockHeadBytes);
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head)
      block_bytes[layer] += codec.PageSize(layer, head).total();
    plain += from_blocks * block_bytes[layer];
  }
  const int64_t sinks = (static_cast<int64_t>(from.size()) - plain) / shape.layers;
  std::vector<uint8_t> to;
  const uint8_t* at = from.data();
  for (int layer = 0; layer < shape.layers; ++layer) {
    const int64_t bytes = block_bytes[layer];
    to.insert(to.end(), at, at + bytes + sinks);
    const uint8_t* const second = at + bytes + sinks;
    for (int64_t block = 1; block < to_blocks; ++block) {
      const uint8_t* const source = second + (block - 1) % (from_blocks - 1) * bytes;
      to.insert(to.end(), source, source + bytes);
    }
    at += from_blocks * bytes + sinks;
  }
  return to;
}

}  // namespace

SyntheticContext::SyntheticContext(Executor* executor, const ModelConfig& config,
                                   const std::string& numerics, const SyntheticOptions& options)
    : executor_(executor), config_(config), numerics_(numerics), options_(options) {
  std::mt19937_64 random(options.seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  const KvShape& shape = executor_->kv().options().shape;
  const int64_t chunk = options.chunk * shape.kv_heads * std::max(shape.dk, shape.dv);
  gaussian_.resize(std::max(kTableFloats, 2 * chunk + 1));
  for (float& x : gaussian_) x = normal(random);
  const int64_t prefix =
      std::max<int64_t>(executor_->codec().traits().prefix_tokens, shape.block_tokens);
  options_.real_tokens = std::max(options_.real_tokens, prefix);
}

absl::Status SyntheticContext::Apply(const SequenceOp& op) {
  StepPlan plan;
  plan.step = ++step_;
  plan.numerics = numerics_;
  plan.ops = {op};
  return executor_->Lead(plan).status();
}

absl::Status SyntheticContext::Fork(SequenceId id, SequenceId source, int64_t length) {
  return Apply({SequenceOp::Kind::kFork, id, source, length, 0});
}

absl::Status SyntheticContext::Close(SequenceId id) {
  return Apply({SequenceOp::Kind::kClose, id, 0, 0, 0});
}

absl::Status SyntheticContext::Step(const Slice& slice) {
  StepPlan plan;
  plan.step = ++step_;
  plan.numerics = numerics_;
  plan.slices = {slice};
  KVRING_ASSIGN_OR_RETURN(const StepResult result, executor_->Lead(plan));
  if (result.outputs.empty()) return absl::OkStatus();
  logits_.resize(static_cast<size_t>(config_.vocab));
  KVRING_RETURN_IF_ERROR(
      executor_->transformer().Logits(result.outputs[0].hidden, 1, logits_.data()));
  last_token_ = SampleToken(logits_, SamplingParams(), 0, shard(slice.sequence).length());
  return absl::OkStatus();
}

absl::Status SyntheticContext::Decode(SequenceId id) {
  Slice slice;
  slice.sequence = id;
  slice.begin = shard(id).length();
  slice.ids = {last_token_};
  slice.want = Want::kLast;
  return Step(slice);
}

absl::Status SyntheticContext::ReadRealTokens(SequenceId id) {
  const int64_t prefix = executor_->codec().traits().prefix_tokens;
  std::mt19937 random(static_cast<uint32_t>(options_.seed));
  for (int64_t begin = 0; begin < options_.real_tokens; begin += options_.chunk) {
    Slice slice;
    slice.sequence = id;
    slice.begin = begin;
    const int64_t count = std::min(options_.chunk, options_.real_tokens - begin);
    for (int64_t i = 0; i < count; ++i)
      slice.ids.push_back(static_cast<int32_t>(random() % config_.vocab));
    slice.scheme = Scheme::kGatherQ;
    slice.mean_exchange = prefix > 0 && begin < prefix && slice.end() >= prefix;
    KVRING_RETURN_IF_ERROR(Step(slice));
  }
  return absl::OkStatus();
}

// Layer by layer and chunk by chunk, as a prefill does. Queries are not needed: statistics are frozen by now.
absl::Status SyntheticContext::FillEncoded(SequenceShard& shard, int64_t length) {
  const KvShape& shape = executor_->kv().options().shape;
  std::vector<int64_t> positions;
  for (int64_t begin = shard.length(); begin < length; begin += positions.size()) {
    positions.resize(std::min(options_.chunk, length - begin));
    std::iota(positions.begin(), positions.end(), begin);
    const int64_t end = begin + static_cast<int64_t>(positions.size());
    for (int layer = 0; layer < shape.layers; ++layer) {
      const int64_t k_floats = positions.size() * int64_t{shape.kv_heads} * shape.dk;
      const int64_t v_floats = positions.size() * int64_t{shape.kv_heads} * shape.dv;
      // Golden-ratio steps: no two chunks begin at the same place of the table.
      next_row_ += 0x9e3779b97f4a7c15u;
      AppendRows rows;
      rows.positions = positions;
      rows.k = gaussian_.data() + (next_row_ >> 32) % (gaussian_.size() - k_floats);
      rows.v = gaussian_.data() + (next_row_ >> 20) % (gaussian_.size() - v_floats);
      KVRING_RETURN_IF_ERROR(shard.Append(layer, rows));
      KVRING_RETURN_IF_ERROR(shard.EncodeReady(layer, end));
      shard.CloseCells(layer, end);
    }
  }
  return absl::OkStatus();
}

absl::Status SyntheticContext::MakeEncoded(SequenceId id, int64_t length) {
  const RankKvOptions& options = executor_->kv().options();
  if (length % options.rule.cell != 0 || length < options_.real_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("a synthetic context of ", length, " tokens: at least ", options_.real_tokens,
                     " and a multiple of the cell of ", options.rule.cell, " are needed"));
  }
  KVRING_RETURN_IF_ERROR(Apply({SequenceOp::Kind::kCreate, id, 0, 0, 0}));
  KVRING_RETURN_IF_ERROR(ReadRealTokens(id));
  return FillEncoded(shard(id), length);
}

absl::Status SyntheticContext::MakeCopied(SequenceId id, int64_t length) {
  if (length <= kCopySourceTokens) return MakeEncoded(id, length);
  const RankKvOptions& options = executor_->kv().options();
  if (length % options.rule.cell != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a synthetic context of ", length,
                                                   " tokens: no multiple of the cell of ",
                                                   options.rule.cell));
  }
  const SequenceId source_id = ~id;
  KVRING_RETURN_IF_ERROR(MakeEncoded(source_id, kCopySourceTokens));
  KVRING_RETURN_IF_ERROR(Apply({SequenceOp::Kind::kCreate, id, 0, 0, 0}));
  const SequenceShard& source = shard(source_id);
  if (source.prefix_blocks() > 0) {
    KVRING_ASSIGN_OR_RETURN(const std::vector<uint8_t> state, ExportState(source));
    KVRING_RETURN_IF_ERROR(ImportState(state, shard(id)));
  }
  const ShardMap& map = executor_->kv().Find(id)->map();
  const int64_t block = options.shape.block_tokens;
  for (int v = 0; v < map.virtual_shards(); ++v) {
    KVRING_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, ExportShard(source, v));
    KVRING_ASSIGN_OR_RETURN(const ParsedShard parsed, ParseShard(bytes, kShardMagic));
    ShardHeader header = parsed.header;
    header.length = length;
    if (header.gone > 0) header.gone = length / block;
    const int64_t from = map.ShardTokens(v, kCopySourceTokens) / block;
    const int64_t to = map.ShardTokens(v, length) / block;
    const auto payload = RepeatBlocks(parsed.payload, executor_->codec(), options.shape, from, to);
    KVRING_RETURN_IF_ERROR(ImportShard(WithHeader(header, payload), shard(id)));
  }
  return Close(source_id);
}

}  // namespace kvring
