// SPDX-License-Identifier: Apache-2.0
#include "launch/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace kvring {
namespace {

constexpr absl::Duration kBarEvery = absl::Milliseconds(200), kLineEvery = absl::Seconds(3);
constexpr int kBarWidth = 24;

bool WantsBar() {
  const char* choice = std::getenv("KVRING_PROGRESS");
  if (choice != nullptr) return std::string(choice) == "bar";
  return isatty(STDERR_FILENO) != 0;
}

}  // namespace

std::string Grouped(int64_t number) {
  std::string digits = std::to_string(number < 0 ? -number : number);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3)
    digits.insert(static_cast<size_t>(i), 1, ',');
  return number < 0 ? "-" + digits : digits;
}

std::string HumanBytes(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%d B", bytes)
                   : absl::StrFormat("%.1f %s", value, units[unit]);
}

Progress::Progress(std::string what, std::string unit, int64_t total, bool quiet)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      total_(total),
      quiet_(quiet),
      bar_(WantsBar()),
      start_(absl::Now()),
      last_(start_) {}

std::string Progress::Line(int64_t done, absl::Time now) const {
  const double seconds = std::max(1e-3, absl::ToDoubleSeconds(now - start_));
  const double rate = static_cast<double>(done) / seconds;
  const double share = total_ > 0 ? static_cast<double>(done) / static_cast<double>(total_) : 1.0;
  const double left = rate > 0 ? static_cast<double>(total_ - done) / rate : 0;
  const int filled = static_cast<int>(share * kBarWidth);
  const std::string bar =
      bar_ ? absl::StrCat("[", std::string(filled, '#'), std::string(kBarWidth - filled, ' '), "] ")
           : "";
  const std::string speed =
      rate < 10 ? absl::StrFormat("%.2f", rate) : absl::StrFormat("%.0f", rate);
  return absl::StrFormat("%-9s%s%3.0f %%  %s/%s %s, %s a second, %.0f s left", what_, bar,
                         share * 100, Grouped(done), Grouped(total_), unit_, speed, left);
}

void Progress::Update(int64_t done) {
  const absl::Time now = absl::Now();
  if (quiet_ || (now - last_ < (bar_ ? kBarEvery : kLineEvery) && done < total_)) return;
  last_ = now;
  drawn_ = bar_;
  std::fprintf(stderr, bar_ ? "\r\033[K%s" : "%s\n", Line(done, now).c_str());
  std::fflush(stderr);
}

void Progress::Finish() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

}  // namespace kvring
