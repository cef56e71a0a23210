// SPDX-License-Identifier: Apache-2.0
#include "tests/support/model_run.h"

#include <fstream>
#include <iterator>

#include "kvstore/codec_spec.h"
#include "runtime/base/hash.h"
#include "runtime/engine/numerics.h"
#include "runtime/engine/rank_group.h"

namespace kvring {

absl::StatusOr<TestModel> LoadTestModel(std::shared_ptr<const GgufFile> file, LinearMath math) {
  TestModel model;
  model.file = std::move(file);
  KVRING_ASSIGN_OR_RETURN(model.config, DeriveModelConfig(*model.file));
  WeightsOptions options;
  options.math = math;
  KVRING_ASSIGN_OR_RETURN(model.weights, Weights::Load(model.file, model.config, options));
  model.numerics = NumericsId(math);
  return model;
}

absl::StatusOr<TestModel> MakeTestModel(const TinyModelOptions& options, LinearMath math) {
  KVRING_ASSIGN_OR_RETURN(const GgufWriter writer, MakeTinyModel(options));
  auto bytes = std::make_shared<std::string>(writer.Bytes());
  const std::span<const uint8_t> view(reinterpret_cast<const uint8_t*>(bytes->data()),
                                      bytes->size());
  KVRING_ASSIGN_OR_RETURN(auto file, GgufFile::FromMemory(view, "generated model"));
  // The file keeps the bytes that it looks into.
  const std::shared_ptr<GgufFile> owner(file.release(), [bytes](GgufFile* f) { delete f; });
  return LoadTestModel(owner, math);
}

absl::StatusOr<TestModel> LoadRealModel(LinearMath math) {
  KVRING_ASSIGN_OR_RETURN(auto file, GgufFile::Open(RealModelPath()));
  return LoadTestModel(std::move(file), math);
}

absl::StatusOr<GreedyRun> RunGreedy(const TestModel& model, const std::vector<int32_t>& prompt,
                                    const GreedyOptions& options) {
  std::vector<const RopeTable*> rope;
  for (const RopeTable& table : model.config.rope) rope.push_back(&table);
  ExecutorOptions executor;
  executor.weights = model.weights;
  KVRING_ASSIGN_OR_RETURN(
      executor.codec, MakeCodec(options.codec, model.config.kv_shape(64), rope, options.tables));
  executor.rule = options.rule;
  executor.virtual_shards = options.virtual_shards;
  executor.timeout = absl::Minutes(2);
  executor.attention = options.attention;
  executor.numerics = model.numerics;
  KVRING_ASSIGN_OR_RETURN(const auto group, RankGroup::Threads(options.ranks, 1, executor));
  EngineOptions engine_options;
  engine_options.weights = model.weights;
  engine_options.codec = executor.codec;
  engine_options.rule = options.rule;
  engine_options.virtual_shards = options.virtual_shards;
  engine_options.numerics = model.numerics;
  engine_options.chunk = options.chunk;
  engine_options.replicated_limit = options.replicated_limit;
  KVRING_ASSIGN_OR_RETURN(const auto engine, Engine::Create(engine_options, &group->leader()));
  for (const std::vector<int32_t>& ids : options.company) {
    EngineRequest other;
    other.prompt = ids;
    other.max_new_tokens = options.new_tokens + 3;
    KVRING_RETURN_IF_ERROR(engine->Submit(std::move(other)).status());
  }
  GreedyRun run;
  absl::Status ended = absl::UnknownError("the request never ended");
  EngineRequest request;
  request.prompt = prompt;
  request.max_new_tokens = options.new_tokens;
  request.rho = options.rho;
  request.on_token = [&](const TokenEvent& event) {
    run.tokens.push_back(event.token);
    run.hashes.push_back(Hash64(event.logits.data(), event.logits.size_bytes()));
    run.logits.emplace_back(event.logits.begin(), event.logits.end());
    return true;
  };
  request.on_done = [&](SequenceId, const absl::Status& status, const std::string&) {
    ended = status;
  };
  KVRING_RETURN_IF_ERROR(engine->Submit(std::move(request)).status());
  KVRING_RETURN_IF_ERROR(engine->RunUntilIdle());
  KVRING_RETURN_IF_ERROR(ended);
  KVRING_ASSIGN_OR_RETURN(run.reports, engine->Reports());
  KVRING_RETURN_IF_ERROR(group->Stop());
  return run;
}

std::vector<int32_t> RandomIds(int64_t n, int32_t first, int32_t vocab, uint64_t seed) {
  std::vector<int32_t> ids(n);
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t key[2] = {seed, static_cast<uint64_t>(i)};
    ids[i] = first +
             static_cast<int32_t>(Hash64(key, sizeof(key)) % static_cast<uint64_t>(vocab - first));
  }
  return ids;
}

std::vector<int32_t> ReadIds16(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<int32_t> ids(bytes.size() / 2);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<uint8_t>(bytes[2 * i]) | static_cast<uint8_t>(bytes[2 * i + 1]) << 8;
  }
  return ids;
}

}  // namespace kvring
