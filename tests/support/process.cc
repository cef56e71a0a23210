// SPDX-License-Identifier: Apache-2.0
#include "tests/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

namespace kvring {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void Become(const std::vector<std::string>& words,
                         const std::vector<std::string>& environment, const int out[2],
                         const int err[2]) {
  setpgid(0, 0);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(out[1], STDOUT_FILENO);
  dup2(err[1], STDERR_FILENO);
  for (const int fd : {out[0], out[1], err[0], err[1], null}) close(fd);
  for (const std::string& setting : environment) putenv(const_cast<char*>(setting.c_str()));
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  _exit(127);
}

// Reads what is there; false at the end of the stream.
bool Drain(int fd, std::string& text) {
  char buffer[65536];
  const ssize_t n = read(fd, buffer, sizeof(buffer));
  if (n > 0) text.append(buffer, n);
  return n > 0;
}

}  // namespace

ProcessResult RunProcess(const std::vector<std::string>& words,
                         const std::vector<std::string>& environment, double timeout_s,
                         double interrupt_after_s) {
  int out[2], err[2];
  ProcessResult result;
  if (pipe(out) != 0 || pipe(err) != 0) return result;
  const pid_t child = fork();
  if (child == 0) Become(words, environment, out, err);
  close(out[1]);
  close(err[1]);
  const auto start = Clock::now();
  bool interrupted = false, timed_out = false;
  pollfd fds[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    poll(fds, 2, 50);
    if (fds[0].revents != 0 && !Drain(fds[0].fd, result.out)) fds[0].fd = -1;
    if (fds[1].revents != 0 && !Drain(fds[1].fd, result.err)) fds[1].fd = -1;
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (interrupt_after_s > 0 && !interrupted && seconds > interrupt_after_s) {
      interrupted = true;
      kill(-child, SIGINT);
    }
    if (!timed_out && seconds > timeout_s) {
      timed_out = true;
      kill(-child, SIGKILL);
    }
  }
  close(out[0]);
  close(err[0]);
  int status = 0;
  waitpid(child, &status, 0);
  result.exit_code = timed_out           ? 124
                     : WIFEXITED(status) ? WEXITSTATUS(status)
                                         : 128 + WTERMSIG(status);
  return result;
}

}  // namespace kvring
