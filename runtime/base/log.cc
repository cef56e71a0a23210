// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <exception>

#include "absl/strings/escaping.h"

namespace kvring {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kInfo};
thread_local int t_rank = -1;

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kQuiet:
      break;
  }
  return spdlog::level::off;
}

// Never destroyed: threads may still log while the process ends.
spdlog::logger& Logger() {
  static spdlog::logger* const logger = [] {
    auto* made = new spdlog::logger("kvring", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("[%H:%M:%S.%e] %L %v");
    made->set_level(spdlog::level::trace);  // g_level decides
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}

bool NeedsQuotes(const std::string& value) {
  if (value.empty()) return true;
  for (const unsigned char c : value) {
    if (c <= ' ' || c == '"' || c == '=' || c == 0x7f) return true;
  }
  return false;
}

}  // namespace

std::string FormatEvent(int rank, const char* event, std::initializer_list<LogField> fields) {
  std::string line = rank < 0 ? event : absl::StrCat("r", rank, " ", event);
  for (const LogField& field : fields) {
    if (NeedsQuotes(field.value)) {
      absl::StrAppend(&line, " ", field.key, "=\"", absl::Utf8SafeCEscape(field.value), "\"");
    } else {
      absl::StrAppend(&line, " ", field.key, "=", field.value);
    }
  }
  return line;
}

void Log(LogLevel level, const char* event, std::initializer_list<LogField> fields) {
  if (level == LogLevel::kQuiet || level < GetLogLevel()) return;
  const std::string line = FormatEvent(t_rank, event, fields);
  try {
    Logger().log(SpdlogLevel(level), line);
  } catch (const std::exception&) {
    // A log that cannot be written must not stop the work.
  }
}

void SetLogLevel(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }

LogLevel GetLogLevel() { return g_level.load(std::memory_order_relaxed); }

absl::StatusOr<LogLevel> ParseLogLevel(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  if (name == "quiet") return LogLevel::kQuiet;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown log level '", name, "': one of debug, info, warning, error, quiet"));
}

void SetLogRank(int rank) { t_rank = rank; }

}  // namespace kvring
