// SPDX-License-Identifier: Apache-2.0
// Whole models in tests: load, run greedily on any number of ranks in any company, take tokens and bits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/visibility.h"
#include "runtime/engine/engine.h"
#include "runtime/model/tiny_model.h"
#include "runtime/model/weights.h"
#include "tests/support/paths.h"

namespace kvring {

struct TestModel {
  std::shared_ptr<const GgufFile> file;
  ModelConfig config;
  std::shared_ptr<const Weights> weights;
  std::string numerics;
};

absl::StatusOr<TestModel> LoadTestModel(std::shared_ptr<const GgufFile> file, LinearMath math);
// A generated model, held in memory.
absl::StatusOr<TestModel> MakeTestModel(const TinyModelOptions& options, LinearMath math);
absl::StatusOr<TestModel> LoadRealModel(LinearMath math);

struct GreedyOptions {
  std::string codec = "f16";
  std::shared_ptr<const CodecTables> tables;  // of calibrated codecs
  int ranks = 1;
  int64_t chunk = 0;
  int64_t new_tokens = 8;
  AttentionForm attention;
  VisibilityRule rule;
  int virtual_shards = 64;
  int rho = 0;
  int replicated_limit = 8;
  std::vector<std::vector<int32_t>> company;  // prompts that run beside it, started before it
};

struct GreedyRun {
  std::vector<int32_t> tokens;
  std::vector<uint64_t> hashes;            // XXH3-64 of each step's logits
  std::vector<std::vector<float>> logits;  // of each step
  std::vector<RankReport> reports;         // after the last step
};

absl::StatusOr<GreedyRun> RunGreedy(const TestModel& model, const std::vector<int32_t>& prompt,
                                    const GreedyOptions& options);

// n ids in [first, vocab), from a fixed hash.
std::vector<int32_t> RandomIds(int64_t n, int32_t first, int32_t vocab, uint64_t seed);

// Little-endian 16-bit ids of a golden file.
std::vector<int32_t> ReadIds16(const std::string& path);

}  // namespace kvring
