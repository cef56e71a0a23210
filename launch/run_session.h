// SPDX-License-Identifier: Apache-2.0
// The steps of `kvring run`: check, join the job, load, read the prompt, answer, report.
#pragma once

#include <cstdint>
#include <string>

#include "launch/command.h"
#include "launch/job.h"
#include "launch/model_options.h"
#include "launch/prompt.h"
#include "runtime/engine/sampler.h"

namespace kvring {

struct RunFlags {
  ModelFlags model;
  PromptFlags prompt;
  JobFlags job;
  bool ranks_given = false;
  std::string new_tokens = "128";
  std::string context;  // empty: the model's own
  bool beyond_trained = false;
  std::string kv = "rot4";
  std::string memory_limit;  // of a rank; empty: a share of what its host has left
  SamplingParams sampling{0.0f, 0, 1.0f, 0};
  std::string chunk;  // empty: by time
  std::string logits_file;
  bool ignore_eos = false;
  std::string scheme = "auto";
  std::string determinism = "rank-invariant";
  std::string self_check = "auto";
  bool small_pages = false;
  std::string pin = "auto";
};

absl::Status RunCommand(const RunFlags& flags, const GlobalOptions& global);

}  // namespace kvring
