// SPDX-License-Identifier: Apache-2.0
// Flags that every subcommand which runs a model shares, and what they stand for once checked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/visibility.h"
#include "runtime/engine/numerics.h"
#include "runtime/model/gguf.h"
#include "runtime/model/weights.h"
#include "runtime/text/vocab_data.h"

namespace CLI {
class App;
}

namespace kvring {

struct ModelFlags {
  std::string model;
  std::string math = "auto";
  std::string attention_math = "int8", attention_rounding;
  std::string visibility = "exact-cell";
  std::string cell = "512";
  int block_tokens = 64;
  int virtual_shards = 64;
  double timeout_s = 30;
  std::vector<std::string> calibration;  // files of tables; empty: the usual places
};

void AddModelFlags(CLI::App& app, ModelFlags& flags);
// --calibration, for subcommands whose codecs may need tables.
void AddCalibrationFlag(CLI::App& app, ModelFlags& flags);

absl::StatusOr<VisibilityRule> ParseVisibility(const ModelFlags& flags);

// A model file, opened and understood; weights not loaded yet. The file stays mapped while anything of it is used.
struct OpenModel {
  std::shared_ptr<const GgufFile> file;
  ModelConfig config;
};
absl::StatusOr<OpenModel> OpenModelFile(const std::string& path);

// "llama, 30 layers, 9/3 heads of 64, context 8,192"
std::string DescribeModel(const ModelConfig& config);

// Threads of each of `ranks` ranks of this process: as asked, or the cores that it may use over ranks, at least 1. Waiting
// threads sleep at once when that makes more threads than cores.
int ThreadsPerRank(int asked, int ranks);

}  // namespace kvring
