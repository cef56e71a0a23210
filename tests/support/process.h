// SPDX-License-Identifier: Apache-2.0
// Runs a program and takes what it printed: for tests of the command line as a user meets it.
#pragma once

#include <string>
#include <vector>

namespace kvring {

struct ProcessResult {
  int exit_code = -1;  // 128 + signal when a signal ended it
  std::string out, err;
};

// words[0] is searched in PATH. Extra environment as "NAME=value". Killed after timeout_s (exit_code 124).
// interrupt_after_s > 0 sends SIGINT to the whole process group after so long, as a terminal's Ctrl-C does.
ProcessResult RunProcess(const std::vector<std::string>& words,
                         const std::vector<std::string>& environment = {}, double timeout_s = 120,
                         double interrupt_after_s = 0);

}  // namespace kvring
