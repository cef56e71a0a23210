// SPDX-License-Identifier: Apache-2.0
// Long contexts without reading a long text: the first tokens go through the model, the rest of every layer's KV cache is filled
// with Gaussian keys and values. What a step reads, how much memory it takes and how long it lasts are those of a real text;
// what the model says then means nothing.
//
// Two ways to fill. Encoded: rows go through the shard as a prefill's do (append, encode, close), in chunks. Copied: a few
// thousand tokens are filled so, and a longer sequence is imported whose pages are copies of theirs, each at an address of
// its own; its pages lie in memory in the order of virtual shards instead of that of chunks.
#pragma once

#include <cstdint>

#include "runtime/engine/executor.h"

namespace kvring {

// Tokens of a copied context that are encoded: several blocks in each of 64 virtual shards.
inline constexpr int64_t kCopySourceTokens = 16384;

struct SyntheticOptions {
  int64_t real_tokens = 128;  // through the model, at least the codec's prefix
  int64_t chunk = 1024;       // tokens of a step
  uint64_t seed = 1;
};

// One rank, which holds the whole sequence; sequences are those of its RankKv. Not thread-safe.
class SyntheticContext {
 public:
  SyntheticContext(Executor* executor, const ModelConfig& config, const std::string& numerics,
                   const SyntheticOptions& options);

  // A new sequence of `length` tokens. Lengths are whole cells of the visibility rule, so that everything is encoded
  // and nothing is exact: INVALID_ARGUMENT else.
  absl::Status MakeEncoded(SequenceId id, int64_t length);
  absl::Status MakeCopied(SequenceId id, int64_t length);
  // The first `length` tokens of a sequence under another name; pages are shared.
  absl::Status Fork(SequenceId id, SequenceId source, int64_t length);
  absl::Status Close(SequenceId id);

  // One token more, chosen greedily and fed to the next call: a step of `kvring run`, logits included.
  absl::Status Decode(SequenceId id);

  SequenceShard& shard(SequenceId id) { return executor_->kv().Find(id)->shard(); }

 private:
  absl::Status Apply(const SequenceOp& op);
  absl::Status ReadRealTokens(SequenceId id);
  absl::Status FillEncoded(SequenceShard& shard, int64_t length);
  absl::Status Step(const Slice& slice);

  Executor* executor_;
  ModelConfig config_;
  std::string numerics_;
  SyntheticOptions options_;
  std::vector<float> gaussian_;  // a table that rows are cut from
  uint64_t next_row_ = 0, step_ = 0;
  int32_t last_token_ = 0;
  std::vector<float> logits_;
};

}  // namespace kvring
