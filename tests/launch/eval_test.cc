// SPDX-License-Identifier: Apache-2.0
// `kvring eval`, `tokenize` and `inspect` as scripts meet them.
#include "tests/launch/cli_fixture.h"

namespace kvring {
namespace {

TEST_F(CliTest, EvalComparesCodecsOnTheSameWindows) {
  const auto json =
      Json({"eval", "-m", model(), "-f", File("text.txt", SomeText(400)), "--kv",
            "f16,rot4,rot2;int3", "--window", "256", "--windows", "3", "--start", "5"});
  for (const char* key : {"model", "text", "window", "windows", "start", "rows"})
    EXPECT_TRUE(json.contains(key)) << key;
  ASSERT_EQ(json["rows"].size(), 4u);
  for (const auto& row : json["rows"]) {
    for (const char* key : {"kv", "bits", "bytes_per_token", "nats", "ppl", "nats_over_f16", "ci95",
                            "kl", "top1", "seconds", "window_nats", "by_depth"}) {
      EXPECT_TRUE(row.contains(key)) << key;
    }
    EXPECT_EQ(row["window_nats"].size(), 3u);
    double sum = 0;
    for (const auto& nats : row["window_nats"]) sum += nats.get<double>();
    EXPECT_NEAR(row["nats"].get<double>(), sum / (3 * 255), 1e-6);
    EXPECT_LE(row["ci95"][0], row["nats_over_f16"]);
    EXPECT_GE(row["ci95"][1], row["nats_over_f16"]);
  }
  const auto& rows = json["rows"];
  EXPECT_EQ(rows[0]["bits"], 16);
  EXPECT_EQ(rows[0]["kl"], 0);
  EXPECT_EQ(rows[0]["top1"], 1);
  EXPECT_GT(rows[2]["kl"], rows[1]["kl"]) << "2 bits lose more than 4";
  EXPECT_GT(rows[1]["kl"], 0);
}

TEST_F(CliTest, EvalIsTheSameOnAnyNumberOfRanks) {
  const std::string text = File("text.txt", SomeText(400));
  const auto run = [&](const char* ranks) {
    return Json({"eval", "-m", model(), "-f", text, "--kv", "rot3,nf4", "--window", "300",
                 "--windows", "2", "--ranks", ranks, "-t", "1"})["rows"];
  };
  const auto one = run("1"), three = run("3");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(one[i]["window_nats"], three[i]["window_nats"]);
    EXPECT_EQ(one[i]["kl"], three[i]["kl"]);
  }
}

TEST_F(CliTest, EvalRefusesWhatTheTextCannotGive) {
  const std::string text = File("short.txt", "A few words.\n");
  ExpectRefused(Kvring({"eval", "-m", model(), "-f", text, "--window", "256"}),
                {"16 windows of 256", "tokens"});
  ExpectRefused(Kvring({"eval", "-m", model(), "-f", text, "--window", "1"}), {"--window 1"});
  ExpectRefused(Kvring({"eval", "-m", model(), "-f", text, "--kv", ";"}), {"--kv names no codec"});
  ExpectRefused(Kvring({"eval", "-m", model(), "-f", text, "--kv", "f16,none", "--window", "4",
                        "--windows", "1"}),
                {"none"});
}

TEST_F(CliTest, EvalAsksForPlantedSentences) {
  const std::string text = File("text.txt", SomeText(400));
  const std::vector<std::string> words = {
      "eval",     "-m", model(),    "-f",  text,   "--task",   "retrieval", "--texts", "2",
      "--depths", "3",  "--length", "600", "--kv", "f16,rot2", "-t",        "1"};
  const auto json = Json(words);
  for (const char* key : {"model", "text", "task", "visibility", "length", "depths", "seed",
                          "control", "rows", "texts", "calibration"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["visibility"], "packed");
  ASSERT_EQ(json["rows"].size(), 2u);
  ASSERT_EQ(json["texts"].size(), 2u);
  EXPECT_EQ(json["texts"][0]["needles"].size(), 3u);
  EXPECT_EQ(json["rows"][0]["over_f16"], 0);
  EXPECT_NE(json["rows"][1]["over_f16"], 0);
  EXPECT_EQ(json["rows"][1]["needle_log_prob"].size(), 6u);
  EXPECT_EQ(json["rows"][1]["depth_over_f16"].size(), 3u);
  EXPECT_LT(json["control"]["log_prob"], 0);
  const auto again = Json(words);
  EXPECT_EQ(again["rows"][1]["needle_log_prob"], json["rows"][1]["needle_log_prob"]);
  ExpectRefused(
      Kvring({"eval", "-m", model(), "-f", text, "--task", "retrieval", "--length", "8K"}),
      {"--length 8192", "4096"});
  EXPECT_EQ(Kvring({"eval", "-m", model(), "-f", text, "--task", "guess"}).exit_code, 1);
}

TEST_F(CliTest, TokenizeAndRunAgree) {
  const std::string text = File("text.txt", "Hello, world.\nHow do you do?");
  const ProcessResult ids = Kvring({"tokenize", "-m", model(), "-f", text, "--ids"});
  ASSERT_EQ(ids.exit_code, 0) << ids.err;
  const auto from_text =
      Json({"run", "-m", model(), "-f", text, "--raw", "-n", "3", "--ignore-eos"});
  const auto from_ids =
      Json({"run", "-m", model(), "--ids", File("ids", ids.out), "-n", "3", "--ignore-eos"});
  EXPECT_EQ(from_text["prompt_tokens"], from_ids["prompt_tokens"]);
  EXPECT_EQ(from_text["logits_hash"], from_ids["logits_hash"]);
}

TEST_F(CliTest, InspectSaysWhatAFileIs) {
  const ProcessResult good = Kvring({"inspect", model()});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_NE(good.out.find("token_embd.weight"), std::string::npos);
  ExpectRefused(Kvring({"inspect", File("bad.gguf", "GGUF")}), {"bad.gguf"});
}

TEST_F(CliTest, HelpAndVersion) {
  EXPECT_EQ(Kvring({"--version"}).out.rfind("kvring ", 0), 0u);
  for (const char* command : {"run", "eval", "calibrate", "tokenize", "inspect", "make-model"}) {
    const ProcessResult help = Kvring({command, "--help"});
    EXPECT_EQ(help.exit_code, 0) << command;
    EXPECT_NE(help.out.find("--json"), std::string::npos) << command;
  }
  EXPECT_EQ(Kvring({"nothing"}).exit_code, 1);
  EXPECT_EQ(Kvring({"run", "--no-such-flag"}).exit_code, 1);
}

}  // namespace
}  // namespace kvring
