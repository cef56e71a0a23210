// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/base/hash.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace kvring {
namespace {

using ::testing::HasSubstr;

// Values of `xxhsum -H3` and `xxhsum -H2` (xxHash 0.8.1).
TEST(Hash, EqualsXxhsum) {
  EXPECT_EQ(HashHex(Hash64("", 0)), "2d06800538d394c2");
  EXPECT_EQ(HashHex(Hash128("", 0)), "99aa06d3014798d86001c324468d497f");
  const std::string text = "kvring";
  EXPECT_EQ(HashHex(Hash64(text.data(), 6)), "70d6a6077ae8492c");
  EXPECT_EQ(HashHex(Hash128(text.data(), 6)), "734dd1df7934bee3dc8ff5c877616e3e");
}

TEST(Hash, StreamEqualsWholeForEverySplit) {
  std::string text(1000, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 37 % 251);
  for (size_t cut = 0; cut <= text.size(); cut += 111) {
    HashStream stream;
    stream.Update(text.data(), cut);
    stream.Digest();  // looking does not disturb
    stream.Update(text.data() + cut, text.size() - cut);
    EXPECT_EQ(stream.Digest(), Hash64(text.data(), text.size()));
  }
}

TEST(Log, FormsNameThenFields) {
  EXPECT_EQ(FormatEvent(-1, "start", {}), "start");
  EXPECT_EQ(FormatEvent(2, "admitted", {{"id", 7}, {"kv", "rot4"}, {"ok", true}, {"s", 0.5}}),
            "r2 admitted id=7 kv=rot4 ok=true s=0.5");
  EXPECT_EQ(FormatEvent(0, "e", {{"t", std::string("a b\n\"c\"")}, {"empty", ""}}),
            "r0 e t=\"a b\\n\\\"c\\\"\" empty=\"\"");
  EXPECT_EQ(FormatEvent(0, "e", {{"status", absl::OkStatus()}}), "r0 e status=OK");
}

std::string Written(LogLevel level, LogLevel event_level) {
  SetLogLevel(level);
  ::testing::internal::CaptureStderr();
  std::thread([event_level] {
    SetLogRank(3);
    Log(event_level, "event", {{"n", 1}});
  }).join();
  SetLogLevel(LogLevel::kInfo);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, LevelDecidesWhatIsWritten) {
  EXPECT_THAT(Written(LogLevel::kInfo, LogLevel::kInfo), HasSubstr("I r3 event n=1\n"));
  EXPECT_THAT(Written(LogLevel::kInfo, LogLevel::kError), HasSubstr("E r3 event n=1\n"));
  EXPECT_EQ(Written(LogLevel::kInfo, LogLevel::kDebug), "");
  EXPECT_EQ(Written(LogLevel::kQuiet, LogLevel::kError), "");
}

TEST(Log, LevelNames) {
  EXPECT_EQ(*ParseLogLevel("warning"), LogLevel::kWarning);
  EXPECT_EQ(*ParseLogLevel("quiet"), LogLevel::kQuiet);
  EXPECT_THAT(std::string(ParseLogLevel("loud").status().message()), HasSubstr("debug, info"));
}

TEST(Clock, Deadlines) {
  const Deadline later = DeadlineAfter(absl::Hours(1));
  EXPECT_FALSE(Expired(later));
  EXPECT_GT(TimeLeft(later), absl::Minutes(59));
  EXPECT_TRUE(CheckDeadline(later, "wait").ok());
  const Deadline past = DeadlineAfter(-absl::Seconds(2));
  EXPECT_TRUE(Expired(past));
  EXPECT_EQ(TimeLeft(past), absl::ZeroDuration());
  EXPECT_EQ(CheckDeadline(past, "gather").code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(CheckDeadline(past, "gather").message()), HasSubstr("gather"));
  EXPECT_EQ(CheckDeadline(absl::InfiniteFuture(), "x").code(), absl::StatusCode::kInvalidArgument);
}

TEST(Clock, StopwatchCountsUpAndRestarts) {
  Stopwatch watch;
  absl::SleepFor(absl::Milliseconds(5));
  const double first = watch.Seconds();
  EXPECT_GE(first, 0.005);
  EXPECT_GE(watch.Seconds(), first);
  watch.Restart();
  EXPECT_GE(watch.Seconds(), 0.0);
}

absl::Status Outer(const absl::Status& inner, int& reached) {
  KVRING_RETURN_IF_ERROR(inner);
  KVRING_ASSIGN_OR_RETURN(const int value, absl::StatusOr<int>(5));
  reached = value;
  return absl::OkStatus();
}

TEST(Status, MacrosPassErrorsOn) {
  int reached = 0;
  EXPECT_EQ(Outer(absl::DataLossError("x"), reached).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(reached, 0);
  EXPECT_TRUE(Outer(absl::OkStatus(), reached).ok());
  EXPECT_EQ(reached, 5);
  EXPECT_EQ(Annotate(absl::DataLossError("sum"), "rank 2"), absl::DataLossError("rank 2: sum"));
}

}  // namespace
}  // namespace kvring
