// SPDX-License-Identifier: Apache-2.0
// Calibrated codecs from the command line: which artifact is used, what is said about it, what is refused.
#include <algorithm>
#include <filesystem>

#include "kvstore/calibration_file.h"
#include "runtime/model/fingerprint.h"
#include "runtime/model/model_config.h"
#include "tests/launch/cli_fixture.h"
#include "tests/support/nuq_tables.h"

namespace kvring {
namespace {

class CalibrationCliTest : public CliTestWithCache {
 protected:
  // An artifact with test tables of `codecs` (all rows of the registry: {}) for the model at `model_path`.
  // key_range: factor on the keys' thresholds.
  void WriteTables(const std::string& path, const std::string& model_path,
                   const std::vector<std::string>& codecs, float key_range = 1.0f) {
    const auto file = GgufFile::Open(model_path);
    ASSERT_TRUE(file.ok()) << file.status();
    const auto config = DeriveModelConfig(**file);
    ASSERT_TRUE(config.ok()) << config.status();
    std::vector<const RopeTable*> rope;
    for (const RopeTable& table : config->rope) rope.push_back(&table);
    Calibration calibration;
    CalibrationInfo& info = calibration.info;
    info.model_name = "tiny";
    info.model_hash = HashHex(*ModelFingerprint(**file));
    info.codecs = codecs;
    info.texts = {"test tables"};
    info.windows = 2;
    info.window = 128;
    info.sinks = 4;
    info.shape = config->kv_shape(64);
    info.rope = DescribeRope(rope);
    const auto all = TestNuqTables(info.shape);
    auto tables = std::make_shared<CodecTables>();
    for (const auto& [name, table] : all->tensors) {
      for (const std::string& id : codecs)
        if (name.starts_with(id + "/")) tables->tensors[name] = table;
    }
    for (auto& [name, table] : tables->tensors) {
      if (!name.ends_with("/k_lo") && !name.ends_with("/k_hi")) continue;
      for (float& x : table.values) x *= key_range;
    }
    ASSERT_FALSE(tables->tensors.empty());
    calibration.tables = tables;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    const absl::Status written = WriteCalibration(calibration, path);
    ASSERT_TRUE(written.ok()) << written;
  }

  // Of the fixture's model, where it is found without a flag.
  std::string CachePath() {
    return Path("cache/kvring/calibration/") +
           HashHex(*ModelFingerprint(**GgufFile::Open(model()))) + ".safetensors";
  }

  std::vector<std::string> RunWords(const std::string& kv, std::vector<std::string> more) {
    std::vector<std::string> words = {"run", "-m", model(), "-f", text_, "--kv",        kv,
                                      "-n",  "4",  "--raw", "-t", "1",   "--ignore-eos"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

TEST_F(CalibrationCliTest, WithoutOneTheMessageSaysHowToMakeIt) {
  ExpectRefused(Kvring(RunWords("nuq3-1%:exact", {})),
                {"--kv nuq3-1% needs a calibration", "kvring calibrate -m", "--kv nuq3-1%"});
  ExpectRefused(Kvring({"eval", "-m", model(), "-f", text_, "--kv", "f16,nuq4,nuq2:qnorm",
                        "--window", "64", "--windows", "1"}),
                {"--kv nuq4,nuq2:qnorm needs"});
  // Once for all ranks.
  ExpectRefused(Mpirun(2, RunWords("nuq4", {})), {"kvring calibrate"});
}

TEST_F(CalibrationCliTest, TheUsersOwnIsFoundByTheModel) {
  WriteTables(CachePath(), model(), {"nuq3-1%"});
  const auto json = Json(RunWords("nuq3-1%", {}));
  EXPECT_EQ(json["kv"], "nuq3-1%");
  ASSERT_EQ(json["calibration"].size(), 1u);
  EXPECT_EQ(json["calibration"][0]["file"], CachePath());
  EXPECT_EQ(json["calibration"][0]["model"], "tiny");
  EXPECT_EQ(json["calibration"][0]["texts"][0], "test tables");
  EXPECT_EQ(json["calibration"][0]["codecs"], nlohmann::json({"nuq3-1%"}));
  const ProcessResult loud = Kvring(RunWords("nuq3-1%", {"-v"}));
  EXPECT_NE(loud.err.find("tables   nuq3-1% of " + CachePath()), std::string::npos) << loud.err;
  EXPECT_TRUE(Json(RunWords("rot4", {}))["calibration"].empty());
}

TEST_F(CalibrationCliTest, SameTokensAndBitsOnAnyNumberOfRanks) {
  const std::string file = Path("a.safetensors");
  WriteTables(file, model(), {"nuq3-1%", "nuq2"});
  for (const char* kv : {"nuq3-1%", "nuq2:token", "nuq3-1%:paper"}) {
    const auto one = Json(RunWords(kv, {"--calibration", file}));
    for (const char* ranks : {"2", "4"}) {
      const auto many = Json(RunWords(kv, {"--calibration", file, "--ranks", ranks}));
      EXPECT_EQ(one["tokens"], many["tokens"]) << kv << " on " << ranks;
      EXPECT_EQ(one["logits_hash"], many["logits_hash"]) << kv << " on " << ranks;
      EXPECT_EQ(one["drift"], many["drift"]) << kv << " on " << ranks;
    }
  }
  const auto threads = Json(RunWords("nuq3-1%", {"--calibration", file}));
  auto words = RunWords("nuq3-1%", {"--calibration", file, "--json", "-", "--quiet"});
  EXPECT_EQ(JsonOf(Mpirun(2, words))["logits_hash"], threads["logits_hash"]);
}

TEST_F(CalibrationCliTest, EvalTakesTablesOfSeveralFilesTheFirstWins) {
  WriteTables(Path("a.safetensors"), model(), {"nuq3-1%"});
  WriteTables(Path("b.safetensors"), model(), {"nuq3-1%", "nuq2"});
  const auto json =
      Json({"eval", "-m", model(), "-f", text_, "--kv", "f16;nuq3-1%;nuq3-1%:paper;nuq2",
            "--window", "256", "--windows", "2", "-t", "1", "--calibration", Path("a.safetensors"),
            "--calibration", Path("b.safetensors")});
  ASSERT_EQ(json["calibration"].size(), 2u);
  EXPECT_EQ(json["calibration"][0]["codecs"], nlohmann::json({"nuq3-1%"}));
  EXPECT_EQ(json["calibration"][1]["codecs"], nlohmann::json({"nuq2"}));
  const auto& rows = json["rows"];
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_GT(rows[1]["kl"], 0);
  EXPECT_GT(rows[3]["kl"], rows[1]["kl"]) << "2 bits lose more than 3 with outliers";
  EXPECT_GT(rows[2]["bits"], 3) << "growing pages: measured";
  EXPECT_LT(rows[2]["bits"], 16);
  for (const auto& row : rows) {
    ASSERT_TRUE(row.contains("drift"));
    int64_t saturated = 0, overflow = 0;
    for (const auto& layer : row["drift"]) {
      saturated += layer["saturated"].get<int64_t>();
      overflow += layer["overflow"].get<int64_t>();
      EXPECT_LE(layer["overflow"], layer["saturated"]);
      EXPECT_LE(layer["saturated_share"], 1);
    }
    EXPECT_EQ(saturated, row["saturated"]);
    EXPECT_EQ(overflow, row["overflow"]);
  }
}

// Tables made for keys of half the size: more than 1 in 100 lies outside.
TEST_F(CalibrationCliTest, DriftIsCountedSaidAndWarnedOf) {
  WriteTables(CachePath(), model(), {"nuq2"}, 0.5f);
  const auto json = Json(RunWords("nuq2", {}));
  ASSERT_FALSE(json["drift"].empty());
  double worst = 0;
  for (const auto& layer : json["drift"])
    worst = std::max(worst, layer["saturated_share"].get<double>());
  ASSERT_GT(worst, 0.005) << "kDriftBound";
  ASSERT_EQ(json["warnings"].size(), 1u);
  EXPECT_NE(json["warnings"][0].get<std::string>().find("nuq2"), std::string::npos);
  const ProcessResult loud = Kvring(RunWords("nuq2", {"-v"}));
  EXPECT_NE(loud.err.find("drift    "), std::string::npos) << loud.err;
  EXPECT_NE(loud.err.find("warning  nuq2: "), std::string::npos) << loud.err;
  const ProcessResult table = Kvring({"eval", "-m", model(), "-f", text_, "--kv", "f16,nuq2",
                                      "--window", "256", "--windows", "1", "-t", "1"});
  EXPECT_NE(table.out.find("drift    nuq2: "), std::string::npos) << table.out;
  EXPECT_EQ(table.out.find("drift    f16"), std::string::npos) << table.out;
  EXPECT_TRUE(Json(RunWords("f16", {}))["drift"].empty());
}

TEST_F(CalibrationCliTest, AFileThatDoesNotFitIsRefused) {
  const std::string other = Path("other.gguf");
  ASSERT_EQ(Kvring({"make-model", "-o", other, "--hidden", "128", "--heads", "4", "--kv-heads", "2",
                    "--head-dim", "32", "--ffn", "192", "--seed", "9"})
                .exit_code,
            0);
  const std::string file = Path("other.safetensors");
  WriteTables(file, other, {"nuq4"});
  ExpectRefused(Kvring(RunWords("nuq4", {"--calibration", file})),
                {"other.safetensors", HashHex(*ModelFingerprint(**GgufFile::Open(other))),
                 HashHex(*ModelFingerprint(**GgufFile::Open(model())))});
  ExpectRefused(Kvring(RunWords("nuq4", {"--calibration", Path("none.safetensors")})),
                {"none.safetensors"});
  ExpectRefused(Kvring(RunWords("nuq4", {"--calibration", File("junk", "no tensors at all")})),
                {"junk"});
  const std::string mine = Path("mine.safetensors");
  WriteTables(mine, model(), {"nuq4"});
  ExpectRefused(Kvring(RunWords("nuq2-1%", {"--calibration", mine})),
                {"mine.safetensors, which has nuq4", "kvring calibrate"});
  // One that fits but is not needed does no harm, one that does not fit is refused even then.
  EXPECT_EQ(Kvring(RunWords("rot4", {"--calibration", mine})).exit_code, 0);
  ExpectRefused(Kvring(RunWords("rot4", {"--calibration", file})), {"other.safetensors"});
}

TEST_F(CalibrationCliTest, ADamagedFileOfTheUsersOwnIsNamed) {
  WriteTables(CachePath(), model(), {"nuq4"});
  std::filesystem::resize_file(CachePath(), std::filesystem::file_size(CachePath()) - 8);
  ExpectRefused(Kvring(RunWords("nuq4", {})), {CachePath(), "kvring calibrate"});
}

TEST_F(CalibrationCliTest, InspectSaysWhatAnArtifactIs) {
  const std::string file = Path("tables.safetensors");
  WriteTables(file, model(), {"nuq3-1%", "nuq2"});
  const ProcessResult text = Kvring({"inspect", file});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  for (const char* word : {"tiny", "test tables", "nuq3-1%", "nuq2"})
    EXPECT_NE(text.out.find(word), std::string::npos) << word << " in\n" << text.out;
  // Cut short, it is refused by name before anything is used of it.
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  ExpectRefused(Kvring({"inspect", file}), {"tables.safetensors"});
  ExpectRefused(Kvring(RunWords("nuq2", {"--calibration", file})), {"tables.safetensors"});
}

}  // namespace
}  // namespace kvring
