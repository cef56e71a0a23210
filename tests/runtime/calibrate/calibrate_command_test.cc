// SPDX-License-Identifier: Apache-2.0
// `kvring calibrate` as a user meets it, on a tiny model.
#include <algorithm>
#include <cstdlib>
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

TEST_F(CalibrateCommand, TcSaysWhatItCostsOnTextThatWasLeftOut) {
  const std::string names[] = {Path("a"), Path("b"), Path("c")};
  const auto json = Json(Words("tc,nuq2", {"-o", names[0], "-t", "1"}));
  ASSERT_TRUE(json.contains("held_out")) << json;
  EXPECT_EQ(json["held_out"]["windows"], 2);
  EXPECT_EQ(json["held_out"]["window"], 128);
  EXPECT_GT(json["held_out_s"], 0);
  const auto& points = json["held_out"]["points"];
  ASSERT_EQ(points.size(), 7u);
  for (size_t i = 0; i < points.size(); ++i) {
    // Classes of whole bits: what is allocated stays at the rate or below, with a gain byte for the 32 coefficients of a head.
    EXPECT_LE(points[i]["bits"], points[i]["rate"].get<double>() + 8.0 / 32);
    EXPECT_GT(points[i]["kl"], 0);
    if (i > 0) {
      EXPECT_LT(points[i]["kl"], points[i - 1]["kl"]);
    }
  }
  // The evaluator on the same tables and tokens: the codec's own path, not a model of it.
  const auto eval =
      Json({"eval", "-m", model(), "-f", text_, "--kv", "tc@1,tc@6", "--window", "128", "--windows",
            "8", "-t", "1", "--math", "f32", "--calibration", names[0]});
  EXPECT_EQ(eval["rows"][0]["bits"], points[0]["bits"]);
  EXPECT_NEAR(eval["rows"][0]["kl"].get<double>() / points[0]["kl"].get<double>(), 1.0, 0.5)
      << "the same kind of text";
  const auto read = ReadCalibration(names[0]);
  ASSERT_TRUE(read.ok() && read->info.held_out);
  EXPECT_EQ(read->info.held_out->points[0].kl, points[0]["kl"]);

  ASSERT_EQ(Kvring(Words("tc,nuq2", {"-o", names[1], "-t", "2"})).exit_code, 0);
  EXPECT_EQ(Bytes(names[0]), Bytes(names[1])) << "on any number of threads";
  const auto skipped = Json(Words("tc,nuq2", {"-o", names[2], "--no-held-out"}));
  EXPECT_FALSE(skipped.contains("held_out"));
  EXPECT_EQ(skipped["tables_hash"], json["tables_hash"]) << "pages do not depend on the estimate";
  EXPECT_FALSE(Json(Words("nuq2", {"-o", names[2]})).contains("held_out"));
  // Blocks that the runtime cannot read cost the estimate, not the tables.
  const auto odd = Json(Words("tc", {"-o", names[2], "--block-tokens", "48"}));
  EXPECT_NE(odd["notes"].dump().find("no held-out estimate: "), std::string::npos) << odd["notes"];
  EXPECT_TRUE(Json(Words("tc", {"-o", names[2], "--block-tokens", "32"})).contains("held_out"));
  // Nothing left to measure on: the note says so.
  const auto all = Json({"calibrate", "-m", model(), "-f", text_, "--kv", "tc", "--window", "128",
                         "--windows", "100", "-o", names[2]});
  EXPECT_FALSE(all.contains("held_out"));
  EXPECT_NE(all["notes"].dump().find("no held-out estimate"), std::string::npos) << all["notes"];
}

TEST_F(CalibrateCommand, UpdateWithItsOwnTextChangesNothing) {
  const auto made = Json(Words("tc,nuq2", {"-o", Path("a"), "-t", "1"}));
  std::vector<std::string> update = {
      "calibrate", "-m",        model(), "--update-covariance", text_,    "--window",
      "128",       "--windows", "2",     "--calibration",       Path("a")};
  const auto with = [&](const std::string& to, const char* threads) {
    std::vector<std::string> words = update;
    words.insert(words.end(), {"-o", to, "-t", threads});
    return words;
  };
  const auto json = Json(with(Path("b"), "1"));
  EXPECT_EQ(json["codecs"], nlohmann::json({"nuq2", "tc"}));
  EXPECT_EQ(json["update"]["from"], made["tables_hash"]);
  EXPECT_EQ(json["update"]["text_hash"], made["text_hash"]);
  EXPECT_EQ(json["update"]["texts"], nlohmann::json({"text.txt"}));
  EXPECT_TRUE(json.contains("held_out"));
  const auto a = ReadCalibration(Path("a")), b = ReadCalibration(Path("b"));
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->info.texts, b->info.texts);
  for (const auto& [name, table] : a->tables->tensors) {
    const CodecTable* const again = b->tables->Find(name);
    ASSERT_NE(again, nullptr) << name;
    const bool derived =
        name.starts_with("tc/") &&
        (name.ends_with("lambda") || name.ends_with("basis") || name.ends_with("inverse"));
    if (!derived) {
      EXPECT_EQ(again->values, table.values) << name;
      continue;
    }
    if (!name.ends_with("lambda")) continue;  // vectors of close eigenvalues may turn
    double largest = 0;
    for (const float x : table.values) largest = std::max<double>(largest, x);
    // The metric's entries are off by 32 roundings to fp32 at most, the ridge makes its root no worse than 2.3 times that.
    for (size_t i = 0; i < table.values.size(); ++i)
      EXPECT_NEAR(again->values[i], table.values[i], 2 * 2.3 * 32 * 0x1p-24 * largest) << name;
  }
  // What counts: the same cost. Codes of a basis that differs in the last bits fall on the other side here and there: on 256
  // tokens of a random model that is a few percent where the cost is small.
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_NEAR(json["held_out"]["points"][i]["kl"].get<double>() /
                    made["held_out"]["points"][i]["kl"].get<double>(),
                1.0, 0.1);
  }
  Json(with(Path("c"), "2"));
  EXPECT_EQ(Bytes(Path("b")), Bytes(Path("c"))) << "on any number of threads";
}

TEST_F(CalibrateCommand, UpdateFitsOtherTextAndIsFoundAgain) {
  Json(Words("tc", {}));  // into the cache folder
  std::string numbers;
  for (int i = 0; i < 400; ++i) numbers += std::to_string(i * 7919 % 1000) + ", ";
  const std::string other = File("numbers.txt", numbers);
  const std::vector<std::string> eval = {"eval",     "-m", model(),     "-f", other, "--kv", "tc2",
                                         "--window", "64", "--windows", "8",  "-t",  "1"};
  const auto before = Json(eval);
  const std::vector<std::string> words = {
      "calibrate", "-m",       model(), "--update-covariance", other, "--update-covariance",
      text_,       "--window", "128",   "--windows",           "6"};
  const auto json = Json(words);
  EXPECT_EQ(json["update"]["texts"], nlohmann::json({"numbers.txt", "text.txt"}));
  const auto after = Json(eval);
  EXPECT_NE(after["rows"][0]["kl"], before["rows"][0]["kl"]);
  EXPECT_LT(after["rows"][0]["kl"], before["rows"][0]["kl"]);
  const ProcessResult shown = Kvring({"inspect", json["file"]});
  EXPECT_NE(shown.out.find("tc updated: covariance from \"numbers.txt\", \"text.txt\""),
            std::string::npos)
      << shown.out;
  const auto shown_json = Json({"inspect", json["file"]});
  EXPECT_EQ(shown_json["update"], json["update"]);
  EXPECT_EQ(shown_json["held_out"], json["held_out"]);
  EXPECT_NE(shown_json["codecs"][0]["form"].dump().find("tc@1 to tc@6"), std::string::npos);
}

TEST_F(CalibrateCommand, UpdateRefusesInOneLine) {
  const auto update = [&](const std::string& artifact, std::vector<std::string> more,
                          const std::string& window = "128") {
    std::vector<std::string> words = {"calibrate", "-m",       model(), "--update-covariance",
                                      text_,       "--window", window,  "--windows",
                                      "2"};
    if (!artifact.empty()) words.insert(words.end(), {"--calibration", artifact});
    words.insert(words.end(), more.begin(), more.end());
    return Kvring(words);
  };
  ExpectRefused(Kvring({"calibrate", "-m", model()}), {"-f TEXT", "--update-covariance"});
  ExpectRefused(update("", {}), {"tc", "needs a calibration", "kvring calibrate -m"});
  Json(Words("nuq2", {"-o", Path("nuq")}));
  ExpectRefused(update(Path("nuq"), {}), {"tc", "which has nuq2"});
  Json(Words("tc", {"-o", Path("tc"), "--no-held-out"}));
  ExpectRefused(update(Path("tc"), {"-f", text_}), {"leave out -f"});
  ExpectRefused(update(Path("tc"), {"--kv", "nuq3"}), {"leave out --kv"});
  ExpectRefused(Kvring(Words("tc", {"--calibration", Path("tc")})), {"--update-covariance"});
  ExpectRefused(update(text_, {}), {text_});
  ExpectRefused(update(Path("tc"), {}, "8K"), {"8192", "4096"});
  const std::string second = Path("second.gguf");
  ASSERT_EQ(
      Kvring({"make-model", "-o", second, "--hidden", "128", "--heads", "4", "--kv-heads", "2",
              "--head-dim", "32", "--ffn", "192", "--trained-context", "4096", "--seed", "99"})
          .exit_code,
      0);
  ExpectRefused(Kvring({"calibrate", "-m", second, "--update-covariance", text_, "--calibration",
                        Path("tc"), "--window", "128", "--windows", "2"}),
                {"another model"});
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
