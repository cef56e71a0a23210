// SPDX-License-Identifier: Apache-2.0
// `kvring` as a process, with a tiny model and texts in a folder of its own.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace kvring {

class CliTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Path of a file in the test's folder, written with `text`.
  std::string File(const std::string& name, const std::string& text);
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  const std::string& model() const { return model_; }
  // About 20 tokens a line, no line like the last one.
  static std::string SomeText(int lines);

  ProcessResult Kvring(std::vector<std::string> words, double timeout_s = 120,
                       double interrupt_after_s = 0);
  // Under mpirun -n ranks.
  ProcessResult Mpirun(int ranks, std::vector<std::string> words, double timeout_s = 120);
  // Runs and reads the JSON from standard output; the test fails when the exit code is not 0.
  nlohmann::json Json(const std::vector<std::string>& words);
  nlohmann::json JsonOf(const ProcessResult& result);

  // Exit 1 and one line on standard error that holds all of `parts`.
  void ExpectRefused(const ProcessResult& result, const std::vector<std::string>& parts);

 private:
  std::string folder_, model_;
};

// Nothing of the user's own calibrations is found, and what tests put there goes with the folder.
class CliTestWithCache : public CliTest {
 protected:
  void SetUp() override;
  void TearDown() override;

  std::string text_;  // a file of about 1,200 tokens
};

}  // namespace kvring
