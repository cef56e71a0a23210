// SPDX-License-Identifier: Apache-2.0
// Subcommands of `kvring`: each is one file and one row of the table in main.cc.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace kvring {

// Options that every subcommand shares.
struct GlobalOptions {
  std::string json;  // file for the JSON result, "-" for standard output; empty: none
  bool verbose = false;
  bool quiet = false;
  int threads = 0;  // per rank; 0: cores of this host / ranks on it
};

// Adds flags to `app` and returns what runs when the subcommand was chosen. A status that is not OK is printed as one line
// on standard error and becomes the exit code (ExitCode).
using CommandAction = std::function<absl::Status()>;

struct CommandRow {
  const char* name;
  const char* summary;
  CommandAction (*add)(CLI::App& app, const GlobalOptions& global);
};

CommandAction AddRunCommand(CLI::App& app, const GlobalOptions& global);
CommandAction AddEvalCommand(CLI::App& app, const GlobalOptions& global);
CommandAction AddCalibrateCommand(CLI::App& app, const GlobalOptions& global);
CommandAction AddTokenizeCommand(CLI::App& app, const GlobalOptions& global);
CommandAction AddInspectCommand(CLI::App& app, const GlobalOptions& global);
CommandAction AddMakeModelCommand(CLI::App& app, const GlobalOptions& global);

// 0 OK; 1 bad use or input; 75 a rank was lost (UNAVAILABLE, ABORTED, DEADLINE_EXCEEDED); 130 cancelled by Ctrl-C (CANCELLED).
int ExitCode(const absl::Status& status);

}  // namespace kvring
