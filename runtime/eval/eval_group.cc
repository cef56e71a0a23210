// SPDX-License-Identifier: Apache-2.0
#include "runtime/eval/eval_group.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kvstore/codec_spec.h"
#include "kvstore/sequence_shard.h"

namespace kvring {

absl::StatusOr<std::unique_ptr<RankGroup>> MakeEvalGroup(const EvalOptions& o,
                                                         const std::string& spec) {
  const ModelConfig& config = o.weights->config();
  std::vector<const RopeTable*> rope;
  for (const RopeTable& table : config.rope) rope.push_back(&table);
  ExecutorOptions executor;
  KVRING_ASSIGN_OR_RETURN(executor.codec,
                          MakeCodec(spec, config.kv_shape(o.block_tokens), rope, o.tables));
  executor.weights = o.weights;
  executor.rule = o.rule;
  executor.block_tokens = o.block_tokens;
  executor.virtual_shards = o.virtual_shards;
  executor.timeout = absl::Minutes(10);
  executor.attention = o.attention;
  executor.numerics = o.numerics;
  return RankGroup::Threads(o.ranks, o.threads, executor);
}

void EvalSubject::Count(const std::vector<RankReport>& reports) {
  for (const RankReport& rank : reports) page_bytes += static_cast<double>(rank.page_bytes);
  const std::vector<LayerDrift> more = SumDrift(reports);
  drift.resize(std::max(drift.size(), more.size()));
  for (size_t i = 0; i < more.size(); ++i) drift[i].Add(more[i]);
}

absl::StatusOr<EvalSubject> MakeEvalSubject(const EvalOptions& o, const std::string& spec) {
  EvalSubject subject;
  subject.spec = spec;
  KVRING_ASSIGN_OR_RETURN(subject.group, MakeEvalGroup(o, spec));
  const Codec& codec = subject.group->leader().codec();
  subject.kv = codec.traits().id;
  subject.bits = BitsPerElement(codec, o.weights->config().kv_shape(o.block_tokens));
  return subject;
}

Slice MakeEvalSlice(const Codec& codec, SequenceId sequence, std::span<const int32_t> ids,
                    int64_t begin, int64_t end, Want want) {
  Slice slice;
  slice.sequence = sequence;
  slice.begin = begin;
  slice.ids.assign(ids.begin() + begin, ids.begin() + end);
  slice.scheme = Scheme::kGatherQ;
  const int64_t prefix = codec.traits().prefix_tokens;
  slice.mean_exchange = prefix > 0 && begin < prefix && end >= prefix;
  slice.want = want;
  return slice;
}

}  // namespace kvring
