// SPDX-License-Identifier: Apache-2.0
#include "launch/model_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "kernels/parallel.h"
#include "launch/lengths.h"
#include "launch/progress.h"
#include "runtime/base/core_plan.h"

namespace kvring {

void AddModelFlags(CLI::App& app, ModelFlags& flags) {
  app.add_option("-m,--model", flags.model, "model file (GGUF)")->required();
  app.add_option("--math", flags.math,
                 "products of linear layers: auto (measures f32, bf16 and, for a file of blocks, "
                 "blocks), f32, bf16, int8, blocks (the file's own 4- and 8-bit blocks by integer "
                 "dot products)")
      ->capture_default_str();
  app.add_option("--attention-math", flags.attention_math,
                 "how packed keys and values are read: int8 (codes of rot and tc by integer dot "
                 "products; other codecs as tiles), tile (decoded to fp32)")
      ->capture_default_str();
  app.add_option("--visibility", flags.visibility,
                 "what queries see of recent keys: exact-cell, packed, teacher, exact-chunk")
      ->capture_default_str();
  app.add_option("--cell", flags.cell, "tokens of an exact cell")->capture_default_str();
  app.add_option("--block-tokens", flags.block_tokens, "tokens of a block")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app.add_option("--virtual-shards", flags.virtual_shards,
                 "virtual shards of a sequence, a power of two")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--timeout", flags.timeout_s,
                 "seconds that ranks wait for each other before the job ends")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 86400.0));
}

void AddCalibrationFlag(CLI::App& app, ModelFlags& flags) {
  app.add_option("--calibration", flags.calibration,
                 "tables that `kvring calibrate` made (default: the user's own for this model, "
                 "else what comes with kvring); may be given several times")
      ->allow_extra_args(false);
}

absl::StatusOr<VisibilityRule> ParseVisibility(const ModelFlags& flags) {
  VisibilityRule rule;
  KVRING_ASSIGN_OR_RETURN(rule.cell, ParseLength(flags.cell));
  if (flags.visibility == "exact-cell") {
    rule.kind = Visibility::kExactCell;
  } else if (flags.visibility == "packed") {
    rule.kind = Visibility::kPacked;
  } else if (flags.visibility == "teacher") {
    rule.kind = Visibility::kTeacher;
  } else if (flags.visibility == "exact-chunk") {
    rule.kind = Visibility::kExactChunk;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--visibility '", flags.visibility,
                     "' is unknown: use exact-cell, packed, teacher or exact-chunk"));
  }
  return rule;
}

absl::StatusOr<OpenModel> OpenModelFile(const std::string& path) {
  OpenModel model;
  KVRING_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  model.file = std::move(file);
  absl::StatusOr<ModelConfig> config = DeriveModelConfig(*model.file);
  if (!config.ok()) return Annotate(config.status(), path);
  model.config = *std::move(config);
  return model;
}

std::string DescribeModel(const ModelConfig& config) {
  return absl::StrCat(config.architecture, ", ", config.layers, " layers, ", config.query_heads,
                      "/", config.kv_heads, " heads of ", config.dk, ", context ",
                      config.trained_context > 0 ? Grouped(config.trained_context) : "not stated");
}

int ThreadsPerRank(int asked, int ranks) {
  // Nothing is asked of the plan that it could refuse.
  const ThreadPlan plan = *PlanThreads(AllowedCores(), std::max(1, ranks), asked, Pinning::kNone);
  if (plan.crowded) SetWatchMicroseconds(0);
  return plan.threads;
}

}  // namespace kvring
