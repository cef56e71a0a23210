// SPDX-License-Identifier: Apache-2.0
// `kvring`: one program, a table of subcommands.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "launch/command.h"
#include "launch/mpi_spawn.h"
#include "launch/version.h"
#include "runtime/base/log.h"

namespace kvring {
namespace {

constexpr CommandRow kCommands[] = {
    {"run", "read a text, answer a question about it", AddRunCommand},
    {"eval", "quality against bytes, for every codec on the same text", AddEvalCommand},
    {"calibrate", "tables of calibrated codecs (nuq) for a model, from a text",
     AddCalibrateCommand},
    {"tokenize", "text to token ids", AddTokenizeCommand},
    {"inspect", "what a model file is, or the one thing that is wrong with it", AddInspectCommand},
    {"make-model", "a tiny random model for tests and trials without a network",
     AddMakeModelCommand},
};

void AddGlobalOptions(CLI::App& app, GlobalOptions& global) {
  app.add_option("--json", global.json, "write the result as JSON to FILE, - for standard output");
  app.add_flag("-v,--verbose", global.verbose, "say more");
  app.add_flag("--quiet", global.quiet, "say nothing but results and errors");
  app.add_option("-t,--threads", global.threads,
                 "threads per rank (default: cores that this process may use / ranks on them)")
      ->check(CLI::Range(0, 4096));
}

// Threads of OpenMP that wait must not take the cores of others for long; the library reads its settings when it is
// loaded, so they need a fresh start. What the user has set stays.
void StartWithShortSpins(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  setenv("GOMP_SPINCOUNT", "10000", 1);  // about 10 us: as long as a sleep and a wake-up cost
  execv("/proc/self/exe", argv);
  // Without /proc it goes on as it is.
}

int Main(int argc, char** argv) {
  StartWithShortSpins(argv);
  CLI::App app{
      "kvring: language-model inference over very long contexts, with a packed KV cache sharded "
      "over ranks"};
  app.require_subcommand(1);
  app.set_version_flag("--version", kVersion);
  app.set_config("--config", "", "read options from FILE (TOML)");
  app.set_help_flag("-h,--help", "print this help");
  GlobalOptions global;
  std::vector<std::pair<CLI::App*, CommandAction>> actions;
  for (const CommandRow& row : kCommands) {
    CLI::App* command = app.add_subcommand(row.name, row.summary);
    AddGlobalOptions(*command, global);
    actions.emplace_back(command, row.add(*command, global));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);  // prints help, version or what is wrong
    return code == 0 ? 0 : 1;
  }
  for (const auto& [command, action] : actions) {
    if (!command->parsed()) continue;
    SetLogLevel(global.quiet     ? LogLevel::kError
                : global.verbose ? LogLevel::kDebug
                                 : LogLevel::kInfo);
    const absl::Status status = action();
    if (!status.ok() && !status.message().empty()) {
      std::fprintf(stderr, "kvring: %s\n", std::string(status.message()).c_str());
    }
    return ExitCode(status);
  }
  return 1;
}

}  // namespace

int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDeadlineExceeded:
      return 75;
    case absl::StatusCode::kCancelled:
      return 130;
    default:
      return 1;
  }
}

}  // namespace kvring

int main(int argc, char** argv) { return kvring::Main(argc, argv); }
