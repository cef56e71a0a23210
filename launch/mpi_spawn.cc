// SPDX-License-Identifier: Apache-2.0
#include "launch/mpi_spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace kvring {
namespace {

std::atomic<pid_t> g_child{0};  // signal handlers can see nothing else
std::atomic<bool> g_interrupted{false};

void PassOn(int signal) {
  if (signal == SIGINT) g_interrupted = true;
  if (g_child > 0) kill(g_child, signal);
}

void InstallHandlers() {
  struct sigaction action {};
  action.sa_handler = PassOn;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

// Open MPI's settings for ranks that share the cores of one host; what the user has set stays.
void SetMpiEnvironment() {
  const std::pair<const char*, const char*> settings[] = {
      {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
      {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
      {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
      {"OMPI_MCA_hwloc_base_binding_policy", "none"},
      {"OMPI_MCA_mpi_yield_when_idle", "1"},
      {"OMPI_MCA_btl_vader_single_copy_mechanism", "none"},
      {"OMP_WAIT_POLICY", "passive"},
  };
  for (const auto& [name, value] : settings) setenv(name, value, 0);
}

absl::Status JobStatus(int wait_status) {
  if (g_interrupted) return absl::CancelledError("");
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) return absl::OkStatus();
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 127) {
    return absl::FailedPreconditionError(
        "mpirun could not be started: install openmpi-bin, or leave out --mpi");
  }
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 1)
    return absl::InvalidArgumentError("");
  const std::string how = WIFSIGNALED(wait_status)
                              ? absl::StrCat("signal ", WTERMSIG(wait_status))
                              : absl::StrCat("exit code ", WEXITSTATUS(wait_status));
  return absl::UnavailableError(absl::StrCat("a rank was lost: mpirun ended with ", how));
}

}  // namespace

std::vector<std::string> ArgumentsForRanks() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string word; std::getline(file, word, '\0');) arguments.push_back(word);
  std::vector<std::string> kept;
  for (size_t i = 1; i < arguments.size(); ++i) {
    if (arguments[i] == "--mpi" || arguments[i].starts_with("--ranks=")) continue;
    if (arguments[i] == "--ranks") {
      ++i;
      continue;
    }
    kept.push_back(arguments[i]);
  }
  return kept;
}

absl::Status SpawnUnderMpirun(int ranks, const std::vector<std::string>& arguments) {
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (length <= 0)
    return absl::InternalError("cannot find this program's own file in /proc/self/exe");
  self[length] = '\0';
  std::vector<std::string> words = {"mpirun", "--quiet", "-n", std::to_string(ranks), self};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  SetMpiEnvironment();
  const pid_t child = fork();
  if (child < 0) return absl::InternalError(absl::StrCat("fork: ", std::strerror(errno)));
  if (child == 0) {
    // Its own group: a terminal's Ctrl-C reaches mpirun once, through PassOn, which is what makes it end its ranks in order.
    setpgid(0, 0);
    if (isatty(STDIN_FILENO)) {  // a background group that reads the terminal would be stopped
      const int null = open("/dev/null", O_RDONLY);
      if (null >= 0) dup2(null, STDIN_FILENO);
    }
    execvp(argv[0], argv.data());
    _exit(127);
  }
  g_child = child;
  InstallHandlers();
  int wait_status = 0;
  while (waitpid(child, &wait_status, 0) < 0 && errno == EINTR) {
  }
  return JobStatus(wait_status);
}

}  // namespace kvring
