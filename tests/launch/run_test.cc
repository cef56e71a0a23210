// SPDX-License-Identifier: Apache-2.0
// `kvring run` as people and scripts meet it.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <tuple>

#include "tests/launch/cli_fixture.h"
#include "tests/support/paths.h"

namespace kvring {
namespace {

std::string Words(int n) {
  std::string text;
  for (int i = 0; i < n; ++i)
    text += "word" + std::to_string(i * 7919 % 100) + (i % 12 == 11 ? ".\n" : " ");
  return text;
}

TEST_F(CliTest, WhatCannotBeRunEndsInOneLine) {
  const std::string text = File("text.txt", "Some text.\n");
  ExpectRefused(Kvring({"run", "-m", Path("none.gguf"), "-p", "x"}), {"none.gguf", "No such file"});
  ExpectRefused(Kvring({"run", "-m", text, "-p", "x"}), {"text.txt"});
  ExpectRefused(Kvring({"run", "-m", model(), "-f", Path("none.txt")}), {"none.txt"});
  ExpectRefused(Kvring({"run", "-m", model(), "-f", File("empty.txt", " \n")}),
                {"empty.txt", "empty"});
  ExpectRefused(Kvring({"run", "-m", model(), "-f", File("binary", std::string("ab\0c", 4))}),
                {"binary", "byte 2"});
  ExpectRefused(Kvring({"run", "-m", model(), "-f", Path("")}), {"folder"});
  ExpectRefused(Kvring({"run", "-m", model()}), {"nothing to read"});
  ExpectRefused(Kvring({"run", "-m", model(), "-p", "x", "-n", "0"}), {"-n 0"});
  ExpectRefused(Kvring({"run", "-m", model(), "-p", "x", "--kv", "rot9"}), {"rot9", "rot4", "nf4"});
  ExpectRefused(Kvring({"run", "-m", model(), "-p", "x", "--ranks", "0"}), {"--ranks 0"});
  ExpectRefused(Kvring({"run", "-m", model(), "-p", "x", "--ranks", "65"}), {"65", "64"});
  ExpectRefused(Kvring({"run", "-m", model(), "-p", "x", "--mpi", "--ranks", "0"}), {"--ranks 0"});
  ExpectRefused(Kvring({"run", "-m", model(), "-p", "x", "--temp", "-1"}), {"--temp -1"});
  ExpectRefused(Kvring({"run", "-m", model(), "-p", "x", "--cell", "100"}), {"--cell 100", "64"});
  ExpectRefused(Kvring({"run", "-m", model(), "-p", "x", "--math", "f8"}), {"f8", "bf16"});
  ExpectRefused(Kvring({"run", "-m", model(), "-p", "x", "-c", "12Q"}), {"12Q"});
  ExpectRefused(Kvring({"run", "-m", model(), "--ids", File("bad.ids", "1 2 x")}),
                {"bad.ids", "'x'"});
  ExpectRefused(
      Kvring({"run", "-m", model(), "-p", "x", "-n", "8G", "--beyond-trained", "--kv", "f32"}),
      {"not enough memory", "available"});
  // Under mpirun the message comes once, not once a rank.
  ExpectRefused(Mpirun(3, {"run", "-m", Path("none.gguf"), "-p", "x"}), {"none.gguf"});
  ExpectRefused(Mpirun(3, {"run", "-m", model(), "-f", Path("empty.txt")}), {"empty"});
}

// F19, F24: nothing is cut silently, the trained length is respected and said.
TEST_F(CliTest, F24_TrainedLengthIsRespectedAndSaid) {
  const std::string text = File("long.txt", Words(2000));
  ExpectRefused(Kvring({"run", "-m", model(), "-f", text}),
                {"4,096", "--beyond-trained", "-n 128"});
  ExpectRefused(Kvring({"run", "-m", model(), "-p", "x", "-c", "8K"}), {"-c 8192", "4,096"});
  ExpectRefused(Kvring({"run", "-m", model(), "-p", Words(60), "-c", "64"}), {"-c allows 64"});
  const auto json = Json({"run", "-m", model(), "-f", text, "--beyond-trained", "-n", "2"});
  EXPECT_GT(json["prompt_tokens"], 4096) << "every token is used";
  ASSERT_EQ(json["warnings"].size(), 1u);
  EXPECT_NE(json["warnings"][0].get<std::string>().find("4096"), std::string::npos);
}

TEST_F(CliTest, JsonHasTheKeysThatScriptsRelyOn) {
  const auto json =
      Json({"run", "-m", model(), "-p", "Hello there", "-n", "5", "--ignore-eos", "--ranks", "2"});
  for (const char* key : {"prompt_tokens", "tokens", "text", "finish_reason", "ttft_s",
                          "prefill_tokens_per_s", "decode_tokens_per_s", "kv", "numerics",
                          "kv_bytes", "kv_bytes_f16", "logits_hash", "ranks", "warnings"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["tokens"].size(), 5u);
  EXPECT_EQ(json["logits_hash"].size(), 5u);
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["kv"], "rot4");
  ASSERT_EQ(json["ranks"].size(), 2u);
  EXPECT_EQ(json["ranks"][0]["tokens"].get<int>() + json["ranks"][1]["tokens"].get<int>(),
            json["prompt_tokens"].get<int>() + 4);
  EXPECT_GT(json["ranks"][1]["peak_rss_bytes"], 1 << 20);
}

TEST_F(CliTest, LogitsFileHoldsARowAStep) {
  const std::string logits = Path("logits.f32");
  const auto json =
      Json({"run", "-m", model(), "-p", "Hello", "-n", "3", "--ignore-eos", "--logits", logits});
  EXPECT_EQ(std::filesystem::file_size(logits), 3u * 512 * 4);
  std::ifstream file(logits, std::ios::binary);
  std::vector<float> row(512);
  for (int step = 0; step < 3; ++step) {
    file.read(reinterpret_cast<char*>(row.data()), 512 * 4);
    EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(),
              json["tokens"][step].get<int>())
        << "greedy";
  }
}

TEST_F(CliTest, AttentionMathIsAFlagAndPartOfTheNumerics) {
  const std::string text = File("long.txt", Words(300));
  std::vector<std::string> run = {"run",       "-m", model(), "-f",           text,     "-p",
                                  "And then?", "-n", "4",     "--ignore-eos", "--math", "f32"};
  const auto int8 = Json(run);
  EXPECT_NE(int8["numerics"].get<std::string>().find("f32/q-int8/p-u8/"), std::string::npos);
  auto by_tiles = run;
  by_tiles.insert(by_tiles.end(), {"--attention-math", "tile"});
  const auto tile = Json(by_tiles);
  EXPECT_NE(tile["numerics"].get<std::string>().find("f32/q-f32/p-f32/"), std::string::npos);
  EXPECT_NE(int8["logits_hash"], tile["logits_hash"]);
  run.insert(run.end(), {"--ranks", "3", "--chunk", "64"});
  EXPECT_EQ(Json(run)["logits_hash"], int8["logits_hash"]);
  ExpectRefused(Kvring({"run", "-m", model(), "-p", "x", "--attention-math", "fp8"}),
                {"--attention-math 'fp8'", "tile or int8"});
  ExpectRefused(Kvring({"eval", "-m", model(), "-f", text, "--attention-rounding", "query"}),
                {"--attention-rounding", "--attention-math int8"});
}

// The law of the project, over real processes: N ranks, whatever they are, give the same tokens and bits.
TEST_F(CliTest, ThreadsAndProcessesGiveTheSameBits) {
  const std::string text = File("text.txt", Words(300));
  for (const char* codec : {"f16", "rot4", "rot2", "int4"}) {
    const std::vector<std::string> run = {
        "run",          "-m",     model(), "-f",   text,  "-p",     "And then?", "-n",     "6",
        "--ignore-eos", "--math", "f32",   "--kv", codec, "--json", "-",         "--quiet"};
    const auto one = JsonOf(Kvring(run));
    ASSERT_GT(one["prompt_tokens"], 600) << "beyond a cell";
    for (const int ranks : {2, 3, 4, 5, 8}) {
      std::vector<std::string> more = run;
      more.insert(more.end(), {"--chunk", ranks % 2 == 0 ? "512" : "37"});
      const auto processes = JsonOf(Mpirun(ranks, more));
      EXPECT_EQ(processes["tokens"], one["tokens"]) << codec << " on " << ranks;
      EXPECT_EQ(processes["logits_hash"], one["logits_hash"]) << codec << " on " << ranks;
      EXPECT_EQ(processes["ranks"].size(), static_cast<size_t>(ranks));
    }
  }
}

TEST_F(CliTest, PinningIsChosenOrRefused) {
  const auto run = [&](const std::string& pin, const std::string& threads) {
    return Kvring({"run", "-m", model(), "-p", "Hello", "-n", "2", "--ignore-eos", "--math", "f32",
                   "--pin", pin, "-t", threads});
  };
  ExpectRefused(run("cores", "4096"), {"--pin cores", "4096 threads"});
  ExpectRefused(run("all", "1"), {"--pin 'all'", "none"});
  const ProcessResult bound = run("cores", "1"), loose = run("none", "1");
  EXPECT_EQ(bound.exit_code, 0) << bound.err;
  EXPECT_NE(bound.err.find("1 thread each, bound to cores of their own"), std::string::npos);
  EXPECT_EQ(loose.err.find("bound to"), std::string::npos);
  EXPECT_EQ(bound.out, loose.out);
}

TEST_F(CliTest, MpiFlagStartsProcessesItself) {
  for (const char* math : {"f32", "blocks"}) {
    const std::vector<std::string> one = {"run", "-m", model(),        "-p",     "Hello",
                                          "-n",  "4",  "--ignore-eos", "--math", math};
    std::vector<std::string> run = one;
    run.insert(run.end(), {"--ranks", "3"});
    const auto threads = Json(run);
    run.push_back("--mpi");
    const auto processes = Json(run);
    EXPECT_EQ(threads["logits_hash"], processes["logits_hash"]) << math;
    EXPECT_EQ(threads["logits_hash"], Json(one)["logits_hash"]) << math;
    EXPECT_EQ(processes["ranks"].size(), 3u);
    EXPECT_EQ(std::string(processes["numerics"]).rfind(std::string(math) + "/", 0), 0u);
  }
}

// A file of blocks: rank 0 chooses, all ranks take what it chose, and the result names it.
TEST_F(CliTest, AutoIsOneFormForTheJob) {
  const std::string blocks = Path("blocks.gguf");
  ASSERT_EQ(Kvring({"make-model", "--type", "q8_0", "-o", blocks}).exit_code, 0);
  const std::vector<std::string> run = {"run", "-m",           blocks,   "-p", "Hello",  "-n",
                                        "4",   "--ignore-eos", "--json", "-",  "--quiet"};
  const auto one = JsonOf(Kvring(run)), ranks = JsonOf(Mpirun(3, run));
  EXPECT_EQ(one["numerics"], ranks["numerics"]);
  EXPECT_EQ(one["logits_hash"], ranks["logits_hash"]);
  std::vector<std::string> named = run;
  const std::string id = one["numerics"];
  named.insert(named.end(), {"--math", id.substr(0, id.find('/'))});
  EXPECT_EQ(JsonOf(Kvring(named))["logits_hash"], one["logits_hash"]) << id;
}

// Processes whose command line names this test's model.
int Survivors(const std::string& model) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    const std::string line((std::istreambuf_iterator<char>(file)), {});
    count += line.find(model) != std::string::npos;
  }
  return count;
}

// F22: what the codec costs on this prompt, before it is read, and never a change of what is answered.
TEST_F(CliTest, SelfCheckMeasuresTheCodecAndChangesNothing) {
  const std::string text = File("check.txt", std::string(600, 'x') + " and some more words here.");
  const auto words = [&](const std::string& kv, const std::string& mode) {
    return std::vector<std::string>{"run",          "-m", model(),       "-f", text, "--raw",
                                    "-n",           "2",  "--kv",        kv,   "-t", "1",
                                    "--self-check", mode, "--ignore-eos"};
  };
  const auto off = Json(words("rot2", "off")), on = Json(words("rot2", "on"));
  EXPECT_FALSE(off.contains("self_check"));
  ASSERT_TRUE(on.contains("self_check"));
  EXPECT_EQ(on["self_check"]["tokens"], std::min<int64_t>(512, on["prompt_tokens"]));
  EXPECT_EQ(on["logits_hash"], off["logits_hash"]);
  // A random model is far from what trained ones lose: two bits cost it more than nothing, eight next to nothing.
  const double two = on["self_check"]["kl"], eight = Json(words("rot8", "on"))["self_check"]["kl"];
  EXPECT_GT(two, 10 * eight);
  EXPECT_LT(eight, 0.05);
  EXPECT_NEAR(on["self_check"]["bound"], 0.8, 1e-9);  // 0.05 nats at 4 bits, four times a bit
  const bool warned = on["warnings"].dump().find("costs") != std::string::npos;
  EXPECT_EQ(warned, two > 0.8);
  EXPECT_FALSE(Json(words("f16", "on")).contains("self_check"));  // nothing to check
  ExpectRefused(Kvring(words("rot2", "maybe")), {"--self-check 'maybe'"});
  const ProcessResult ranks = Mpirun(2, words("int3", "on"));
  EXPECT_EQ(ranks.exit_code, 0) << ranks.err;
  EXPECT_NE(ranks.err.find("check    int3 costs"), std::string::npos) << ranks.err;
}

TEST_F(CliTest, CtrlCEndsAllRanksAtOnce) {
  const std::string text = File("long.txt", Words(1600));
  std::vector<std::string> run = {
      "run",          "-m",     model(), "-f",      text, "-n", "1M", "--beyond-trained",
      "--ignore-eos", "--math", "f32",   "--ranks", "3"};
  const auto threads = Kvring(run, 60, 1.5);
  EXPECT_EQ(threads.exit_code, 130) << threads.err;
  run.push_back("--mpi");
  const auto processes = Kvring(run, 60, 3);
  EXPECT_EQ(processes.exit_code, 130) << processes.err;
  EXPECT_EQ(Survivors(model()), 0);
}

TEST_F(CliTest, SampledAnswersDependOnTheSeedAlone) {
  const auto run = [&](const char* seed, const char* ranks) {
    return Json({"run", "-m", model(), "-p", "Hello", "-n", "12", "--ignore-eos", "--temp", "1",
                 "--top-p", "0.9", "--seed", seed, "--math", "f32", "--ranks", ranks})["tokens"];
  };
  EXPECT_EQ(run("5", "1"), run("5", "3"));
  EXPECT_NE(run("5", "1"), run("6", "1"));
}

std::string Numbers(int n, int below) {
  std::string text;
  for (int64_t i = 0; i < n; ++i) text += std::to_string(i * 7919 % below) + " ";
  return text;
}

double PeakOverPlan(const nlohmann::json& json) {
  double peak = 0;
  for (const auto& rank : json["ranks"]) {
    peak = std::max(peak, rank["peak_rss_bytes"].get<double>());
  }
  return peak / json["planned_peak_bytes"].get<double>();
}

// What was planned before the start is what was used, within 10 %: 8,000 tokens on 4 ranks, each a process.
TEST_F(CliTest, PeakMemoryIsPredicted) {
  const std::string ids = File("prompt.ids", Numbers(8000, 256));
  const auto json =
      JsonOf(Mpirun(4, {"run", "-m", model(), "--ids", ids, "-n", "4", "--ignore-eos",
                        "--beyond-trained", "--chunk", "1K", "--json", "-", "--quiet"}));
  EXPECT_NEAR(PeakOverPlan(json), 1.0, 0.1);
}

// The same with the small real model, where it is at hand.
TEST_F(CliTest, PeakMemoryIsPredictedForTheRealModel) {
  const std::string real = RealModelPath();
  if (real.empty()) GTEST_SKIP() << "the real model is not here: launch/fetch_model.sh gets it";
  const std::string ids = File("prompt.ids", Numbers(8000, 40000));
  const auto json = JsonOf(Mpirun(
      4, {"run", "-m", real, "--ids", ids, "-n", "4", "--ignore-eos", "--json", "-", "--quiet"},
      400));
  EXPECT_NEAR(PeakOverPlan(json), 1.0, 0.1);
  EXPECT_EQ(json["prompt_tokens"], 8000);
}

// About 140 TFLOP: a quarter of an hour on two cores. `cmake -DKVRING_LONG_TESTS=ON`, then `ctest -L long`. The answer may be
// nonsense so far beyond the trained 8,192 tokens; memory must be what was planned.
TEST_F(CliTest, DISABLED_LongBookOnFourRanks) {
  const std::string real = RealModelPath(), book = TestDataPath("middlemarch.txt");
  if (real.empty() || book.empty())
    GTEST_SKIP() << "needs the real model and middlemarch.txt (KVRING_TEST_DATA)";
  std::ifstream file(book, std::ios::binary);
  std::string excerpt(237000, '\0');  // 3.95 bytes a token: 60,000 tokens
  file.read(excerpt.data(), static_cast<std::streamsize>(excerpt.size()));
  const auto json =
      JsonOf(Mpirun(4,
                    {"run", "-m", real, "-f", File("book.txt", excerpt), "-p", "Who is Dorothea?",
                     "-n", "16", "--beyond-trained", "--json", "-"},
                    3600));
  std::cout << json.dump(1) << std::endl;
  EXPECT_GT(json["prompt_tokens"], 55000);
  EXPECT_EQ(json["warnings"].size(), 1u);
  EXPECT_NEAR(PeakOverPlan(json), 1.0, 0.1);
}

// The law on the real model: 64 greedy tokens, ranks as threads and as processes, chunks of 1 to the whole prompt.
class RealModelLaw : public CliTest {
 protected:
  void Check(int tokens, const std::vector<std::string>& codecs) {
    const std::string real = RealModelPath();
    if (real.empty()) GTEST_SKIP() << "needs the real model: launch/fetch_model.sh gets it";
    const std::string ids = File("prompt.ids", Numbers(tokens, 40000));
    for (const std::string& codec : codecs) {
      const std::vector<std::string> run = {
          "run", "-m", real, "--ids",  ids,    "-n",     "64", "--ignore-eos", "--kv",
          codec, "-t", "1",  "--math", "bf16", "--json", "-",  "--quiet"};
      const auto one = JsonOf(With(run, 1, false, "1M"));
      for (const auto& [ranks, mpi, chunk] :
           std::vector<std::tuple<int, bool, std::string>>{{1, false, "37"},
                                                           {2, true, "512"},
                                                           {3, false, "64"},
                                                           {3, true, "37"},
                                                           {4, true, "1M"},
                                                           {5, true, "64"},
                                                           {8, false, "512"},
                                                           {8, true, "37"},
                                                           {4, false, tokens > 700 ? "37" : "1"}}) {
        const auto other = JsonOf(With(run, ranks, mpi, chunk));
        EXPECT_EQ(other["tokens"], one["tokens"])
            << codec << ' ' << ranks << (mpi ? " processes" : " threads") << ", chunk " << chunk;
        EXPECT_EQ(other["logits_hash"], one["logits_hash"])
            << codec << ' ' << ranks << (mpi ? " processes" : " threads") << ", chunk " << chunk;
      }
    }
  }

 private:
  ProcessResult With(std::vector<std::string> run, int ranks, bool mpi, const std::string& chunk) {
    run.insert(run.end(), {"--chunk", chunk});
    if (mpi) return Mpirun(ranks, run, 1800);
    run.insert(run.end(), {"--ranks", std::to_string(ranks)});
    return Kvring(run, 1800);
  }
};

TEST_F(RealModelLaw, DISABLED_Long100Tokens) { Check(100, {"f16", "rot4", "rot2", "int4"}); }
TEST_F(RealModelLaw, DISABLED_Long600Tokens) { Check(600, {"f16", "rot4", "rot2", "int4"}); }
TEST_F(RealModelLaw, DISABLED_Long3000Tokens) { Check(3000, {"f16", "rot4", "rot2", "int4"}); }

}  // namespace
}  // namespace kvring
