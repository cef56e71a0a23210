// SPDX-License-Identifier: Apache-2.0
// Progress of a long reading on standard error: a bar that redraws itself on a terminal, a plain line every few seconds
// elsewhere. KVRING_PROGRESS=bar|lines overrides what the terminal says (mpirun hides it from ranks).
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace kvring {

class Progress {
 public:
  // what: "reading"; unit: "tokens". quiet prints nothing.
  Progress(std::string what, std::string unit, int64_t total, bool quiet);
  ~Progress() { Finish(); }
  void Update(int64_t done);
  void Finish();  // clears the bar; idempotent

 private:
  std::string Line(int64_t done, absl::Time now) const;
  std::string what_, unit_;
  int64_t total_;
  bool quiet_, bar_;
  absl::Time start_, last_;
  bool drawn_ = false;
};

// "1,234,567"
std::string Grouped(int64_t number);
// "31.2 MiB"
std::string HumanBytes(int64_t bytes);

}  // namespace kvring
