// SPDX-License-Identifier: Apache-2.0
// Events on standard error: a name, then key=value pairs, e.g. Log(LogLevel::kInfo, "admitted", {{"id", 7}, {"kv", "rot4"}}).
// One line an event: "[12:00:01.123] I r2 admitted id=7 kv=rot4"; values with spaces, quotes or control characters
// are quoted and escaped. Not for kernels and not per token. Thread-safe. The level is the process's, the rank belongs
// to the calling thread, since ranks may be threads.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>

#include "runtime/base/status.h"

namespace kvring {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError, kQuiet /* nothing is written */ };

struct LogField {
  template <typename T>
  LogField(const char* key, const T& value) : key(key), value(Text(value)) {}

  const char* key;
  std::string value;

 private:
  template <typename T>
  static std::string Text(const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      return value ? "true" : "false";
    } else if constexpr (std::is_convertible_v<const T&, std::string>) {
      return value;
    } else if constexpr (std::is_same_v<T, absl::Status>) {
      return value.ToString();
    } else {
      return absl::StrCat(value);
    }
  }
};

void Log(LogLevel level, const char* event, std::initializer_list<LogField> fields = {});

// What is written: `level` and above. kInfo at start.
void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();
// "debug", "info", "warning", "error", "quiet"; INVALID_ARGUMENT lists them.
absl::StatusOr<LogLevel> ParseLogLevel(const std::string& name);

// The rank that this thread's lines carry; -1 (at start) for none.
void SetLogRank(int rank);

// The line without time and level, as Log forms it; for tests and for other sinks.
std::string FormatEvent(int rank, const char* event, std::initializer_list<LogField> fields);

}  // namespace kvring
