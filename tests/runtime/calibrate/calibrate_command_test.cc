// SPDX-License-Identifier: Apache-2.0
// `kvring calibrate` as a user meets it, on a tiny model.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "kvstore/calibration_file.h"
#include "tests/launch/cli_fixture.h"

namespace kvring {
namespace {

namespace fs = std::filesystem;

std::string Bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class CalibrateCommand : public CliTestWithCache {
 protected:
  std::vector<std::string> Words(const std::string& kv, std::vector<std::string> more) {
    std::vector<std::string> words = {"calibrate", "-m",       model(), "-f",        text_, "--kv",
                                      kv,          "--window", "128",   "--windows", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // Names in the test's folder, without the fixture's own files.
  int FilesLike(const std::string& part) {
    int count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(Path("")))
      count += entry.path().filename().string().find(part) != std::string::npos;
    return count;
  }
};

TEST_F(CalibrateCommand, SameBytesTwiceAndOnAnyNumberOfThreads) {
  const std::string kv = "nuq3-1%,nuq2:qnorm,nuq2-1%:post-rope,nuq4-0.5%:token-keys";
  const std::string names[] = {Path("a"), Path("b"), Path("c")};
  const char* const threads[] = {"1", "1", "2"};
  for (int i = 0; i < 3; ++i) {
    const ProcessResult made = Kvring(Words(kv, {"-o", names[i], "-t", threads[i]}));
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_NE(made.out.find(names[i]), std::string::npos) << "it says where: " << made.out;
  }
  EXPECT_FALSE(Bytes(names[0]).empty());
  EXPECT_EQ(Bytes(names[0]), Bytes(names[1]));
  EXPECT_EQ(Bytes(names[0]), Bytes(names[2]));
  const ProcessResult other = Kvring(Words(kv, {"-o", Path("d"), "--seed", "1"}));
  ASSERT_EQ(other.exit_code, 0) << other.err;
  EXPECT_NE(Bytes(names[0]), Bytes(Path("d"))) << "another seed reads other windows";
}

TEST_F(CalibrateCommand, JsonAndTheFileAgreeAndOtherCommandsFindIt) {
  const auto json = Json(Words("nuq3-1%,nuq3-1%:paper,nuq2", {"-t", "1"}));
  for (const char* key :
       {"file", "model_hash", "text_hash", "tables_hash", "codecs", "windows", "window", "seed",
        "loss", "math", "seconds", "bytes", "peak_rss_bytes", "notes"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["codecs"], nlohmann::json({"nuq3-1%", "nuq2"}));
  EXPECT_TRUE(json["notes"].empty()) << json["notes"];
  const std::string path = json["file"];
  EXPECT_EQ(path, Path("cache/kvring/calibration/") + json["model_hash"].get<std::string>() +
                      ".safetensors");
  EXPECT_EQ(json["bytes"], static_cast<int64_t>(fs::file_size(path)));
  const auto read = ReadCalibration(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->info.texts, std::vector<std::string>{"text.txt"});
  EXPECT_EQ(read->info.windows, 2);
  EXPECT_EQ(read->info.window, 128);
  EXPECT_EQ(read->info.sinks, 4);
  EXPECT_EQ(read->info.text_hash, json["text_hash"]);
  EXPECT_DOUBLE_EQ(read->info.loss, json["loss"].get<double>());

  const auto eval = Json({"eval", "-m", model(), "-f", text_, "--kv", "nuq3-1%,nuq3-1%:paper,nuq2",
                          "--window", "128", "--windows", "2", "-t", "1"});
  ASSERT_EQ(eval["rows"].size(), 3u);
  EXPECT_GT(eval["rows"][2]["kl"], eval["rows"][0]["kl"])
      << "2 bits lose more than 3 with outliers";
  // Calibrated on these very tokens: what finds no slot stays near what the slots were made for.
  EXPECT_EQ(eval["calibration"][0]["file"], path);
}

TEST_F(CalibrateCommand, SeveralTextsAndAShortOne) {
  const std::string more = File("more.txt", SomeText(20));
  const auto json = Json({"calibrate", "-m", model(), "-f", text_, "-f", more, "--kv", "nuq4",
                          "--window", "64", "--windows", "500", "-o", Path("a"), "-t", "1"});
  ASSERT_EQ(json["notes"].size(), 1u);
  EXPECT_NE(json["notes"][0].get<std::string>().find("instead of 500"), std::string::npos);
  EXPECT_EQ(ReadCalibration(Path("a"))->info.texts,
            (std::vector<std::string>{"text.txt", "more.txt"}));
}

TEST_F(CalibrateCommand, RefusesInOneLineBeforeTheWork) {
  ExpectRefused(Kvring(Words("nuq7", {})), {"nuq7"});
  ExpectRefused(Kvring(Words("nuq3,rot4", {})), {"rot4", "no calibration"});
  ExpectRefused(Kvring(Words("nuq3:loud", {})), {"'loud'"});
  ExpectRefused(Kvring(Words("nuq3", {"--math", "bf16"})), {"f32", "bf16"});
  ExpectRefused(Kvring(Words("nuq3", {"-o", Path("no/such/folder/a")})), {"cannot write"});
  ExpectRefused(Kvring(Words("nuq3", {"-o", Path("")})), {"cannot write"});
  const std::string words = File("words.txt", "A few words.\n");
  ExpectRefused(Kvring({"calibrate", "-m", model(), "-f", words, "--kv", "nuq3"}),
                {"tokens", "2048"});
  ExpectRefused(Kvring({"calibrate", "-m", model(), "-f", text_, "--window", "8K"}),
                {"8192", "4096"});
  EXPECT_EQ(FilesLike("probe") + FilesLike("safetensors"), 0);
}

TEST_F(CalibrateCommand, AnInterruptLeavesNothingHalfWritten) {
  const std::string book = File("book.txt", SomeText(4000));
  const ProcessResult ended =
      Kvring({"calibrate", "-m", model(), "-f", book, "--kv", "nuq3", "--window", "1024",
              "--windows", "1000", "-t", "1", "-o", Path("half.safetensors")},
             120, 0.5);
  // A fast machine may have finished: then the file is whole.
  if (ended.exit_code == 0) {
    EXPECT_TRUE(ReadCalibration(Path("half.safetensors")).ok());
    GTEST_SKIP() << "finished before the interrupt";
  }
  EXPECT_EQ(ended.exit_code, 130) << ended.err;
  EXPECT_EQ(FilesLike("half"), 0);
}

}  // namespace
}  // namespace kvring
