// SPDX-License-Identifier: Apache-2.0
#include "tests/launch/cli_fixture.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace kvring {
namespace {

// One thread a rank and sleeping waits: the machine of a test is never alone.
const std::vector<std::string> kEnvironment = {"OMP_WAIT_POLICY=passive",
                                               "KVRING_PROGRESS=lines",
                                               "OMPI_ALLOW_RUN_AS_ROOT=1",
                                               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                               "OMPI_MCA_rmaps_base_oversubscribe=1",
                                               "OMPI_MCA_hwloc_base_binding_policy=none",
                                               "OMPI_MCA_mpi_yield_when_idle=1",
                                               "OMPI_MCA_btl_vader_single_copy_mechanism=none"};

}  // namespace

void CliTest::SetUp() {
  char name[] = "/tmp/kvring-cli-XXXXXX";
  ASSERT_NE(mkdtemp(name), nullptr);
  folder_ = name;
  model_ = Path("tiny.gguf");
  const ProcessResult made =
      Kvring({"make-model", "-o", model_, "--hidden", "128", "--heads", "4", "--kv-heads", "2",
              "--head-dim", "32", "--ffn", "192", "--trained-context", "4096"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
}

void CliTest::TearDown() { std::filesystem::remove_all(folder_); }

std::string CliTest::SomeText(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i)
    text += "Line " + std::to_string(i * 31 % 97) + " of a text that goes on.\n";
  return text;
}

void CliTestWithCache::SetUp() {
  CliTest::SetUp();
  setenv("XDG_CACHE_HOME", Path("cache").c_str(), 1);
  text_ = File("text.txt", SomeText(60));
}

void CliTestWithCache::TearDown() {
  unsetenv("XDG_CACHE_HOME");
  CliTest::TearDown();
}

std::string CliTest::File(const std::string& name, const std::string& text) {
  std::ofstream(Path(name), std::ios::binary) << text;
  return Path(name);
}

ProcessResult CliTest::Kvring(std::vector<std::string> words, double timeout_s,
                              double interrupt_after_s) {
  words.insert(words.begin(), KVRING_BINARY);
  return RunProcess(words, kEnvironment, timeout_s, interrupt_after_s);
}

ProcessResult CliTest::Mpirun(int ranks, std::vector<std::string> words, double timeout_s) {
  const std::vector<std::string> head = {"mpirun", "--quiet", "-n", std::to_string(ranks),
                                         KVRING_BINARY};
  words.insert(words.begin(), head.begin(), head.end());
  return RunProcess(words, kEnvironment, timeout_s);
}

nlohmann::json CliTest::JsonOf(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << "no JSON: " << result.out.substr(0, 300);
  return json;
}

nlohmann::json CliTest::Json(const std::vector<std::string>& words) {
  std::vector<std::string> all = words;
  all.insert(all.end(), {"--json", "-", "--quiet"});
  return JsonOf(Kvring(all));
}

void CliTest::ExpectRefused(const ProcessResult& result, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  for (const std::string& part : parts) {
    EXPECT_NE(result.err.find(part), std::string::npos) << "'" << part << "' in: " << result.err;
  }
}

}  // namespace kvring
