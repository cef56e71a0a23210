// SPDX-License-Identifier: Apache-2.0
// `--kv tc@auto`: the rate is the largest that fits, the same on all ranks, and what it costs is said.
#include <algorithm>

#include "kvstore/calibration_file.h"
#include "kvstore/codec_spec.h"
#include "kvstore/sequence_shard.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/memory_plan.h"
#include "runtime/model/model_config.h"
#include "tests/launch/cli_fixture.h"

namespace kvring {
namespace {

constexpr int kBlock = 64;
constexpr VisibilityRule kRule{Visibility::kExactCell, 512};  // run's default

class AutoRateTest : public CliTestWithCache {
 protected:
  void SetUp() override {
    CliTestWithCache::SetUp();
    tables_ = Path("tc.safetensors");
    Json({"calibrate", "-m", model(), "-f", text_, "--kv", "tc", "--window", "128", "--windows",
          "2", "-o", tables_});
    file_ = std::move(*GgufFile::Open(model()));
    config_ = *DeriveModelConfig(*file_);
    for (const RopeTable& table : config_.rope) rope_.push_back(&table);
    calibration_ = *ReadCalibration(tables_);
  }

  // Bytes that the plan of `tokens` needs on each of `ranks` at a rate, by the codec itself.
  int64_t Needs(const std::string& spec, int64_t tokens, int ranks) {
    const auto codec = MakeCodec(spec, config_.kv_shape(kBlock), rope_, calibration_.tables);
    EXPECT_TRUE(codec.ok()) << codec.status();
    const ShardMap map = *ShardMap::Create(ranks, 64, kBlock, 0);
    const int64_t chunk = std::max(int64_t{kBlock} * ranks, Engine::kMaxChunk);
    return PlanMemory(config_, **codec, map, tokens, chunk, kRule).total();
  }

  std::vector<std::string> Words(const std::string& kv, int64_t limit, int64_t context,
                                 std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"run",
                                      "-m",
                                      model(),
                                      "-p",
                                      "Hello.",
                                      "--raw",
                                      "--kv",
                                      kv,
                                      "-n",
                                      "4",
                                      "-t",
                                      "1",
                                      "--ignore-eos",
                                      "-c",
                                      std::to_string(context),
                                      "--calibration",
                                      tables_};
    if (limit > 0) words.insert(words.end(), {"--memory-limit", std::to_string(limit)});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  double Rate(int64_t limit, int64_t context, std::vector<std::string> more = {}) {
    return Json(Words("tc@auto", limit, context, std::move(more)))["auto"]["rate"];
  }
  static std::string AtTenths(int tenths) {
    return "tc@" + std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
  }

  std::string tables_;
  std::shared_ptr<const GgufFile> file_;
  ModelConfig config_;
  std::vector<const RopeTable*> rope_;
  Calibration calibration_;
};

TEST_F(AutoRateTest, TellsWhenMoreIsReadThanTheTablesServe) {
  const auto few = Json(Words("tc3", 0, 200));
  EXPECT_TRUE(few["warnings"].empty()) << few["warnings"];
  std::vector<std::string> words = Words("tc3", 0, 200);
  *(std::find(words.begin(), words.end(), "-n") + 1) = "140";
  const auto many = Json(words);
  ASSERT_EQ(many["warnings"].size(), 1u) << many["warnings"];
  EXPECT_NE(many["warnings"][0].get<std::string>().find("serve 128 tokens"), std::string::npos)
      << many["warnings"];
}

TEST_F(AutoRateTest, IsTheLargestThatFits) {
  constexpr int64_t kContext = 4096;
  for (const int tenths : {10, 17, 27, 44, 59}) {
    // Exactly what this rate takes, and one byte less.
    const int64_t needs = Needs(AtTenths(tenths), kContext, 1);
    ASSERT_GT(Needs(AtTenths(tenths + 1), kContext, 1), needs) << tenths;
    EXPECT_DOUBLE_EQ(Rate(needs, kContext), tenths / 10.0);
    if (tenths > 10) {
      EXPECT_DOUBLE_EQ(Rate(needs - 1, kContext), (tenths - 1) / 10.0);
    }
  }
  EXPECT_EQ(Rate(0, kContext), 6.0) << "with all memory there is";
  // A codec by name meets the same limit.
  const int64_t limit = Needs("tc@3.3", 3000, 1);
  const auto words = [&](const std::string& kv) {
    return std::vector<std::string>{"run",
                                    "-m",
                                    model(),
                                    "--ids",
                                    Path("ids"),
                                    "-n",
                                    "2996",
                                    "--kv",
                                    kv,
                                    "--calibration",
                                    tables_,
                                    "-t",
                                    "1",
                                    "--memory-limit",
                                    std::to_string(limit)};
  };
  File("ids", "1 2 3 4");
  ExpectRefused(Kvring(words("tc@3.4")), {"not enough memory", "3,000 tokens with --kv tc@3.4"});
}

TEST_F(AutoRateTest, FallsWithContextAndHoldsForRanks) {
  const int64_t limit = Needs("tc@2.5", 2048, 1);
  double last = 7.0;
  for (const int64_t context : {512, 1024, 2048, 2560, 3072}) {
    const double rate = Rate(limit, context);
    EXPECT_LE(rate, last) << context;
    last = rate;
  }
  EXPECT_LT(last, 2.5);
  EXPECT_DOUBLE_EQ(Rate(limit, 2048), 2.5);
  // Ranks share the sequence: the same limit on each is worth more bits. Threads and processes choose alike.
  const int64_t of_four = Needs("tc@3.1", 4096, 4);
  for (const int64_t bytes : {of_four - 1, of_four}) {
    const auto threads = Json(Words("tc@auto", bytes, 4096, {"--ranks", "4"}));
    EXPECT_DOUBLE_EQ(threads["auto"]["rate"], bytes == of_four ? 3.1 : 3.0);
    const auto processes =
        JsonOf(Mpirun(4, Words("tc@auto", bytes, 4096, {"--json", "-", "--quiet"})));
    EXPECT_EQ(processes["auto"], threads["auto"]);
    EXPECT_EQ(processes["kv"], threads["kv"]);
    EXPECT_EQ(processes["logits_hash"], threads["logits_hash"]);
  }
}

TEST_F(AutoRateTest, SaysWhatItChoseAndWhatItCosts) {
  const int64_t limit = Needs("tc@2.7", 1024, 1);
  const auto json = Json(Words("tc@auto", limit, 1024));
  EXPECT_EQ(json["kv"], "tc@2.7");
  const auto& chosen = json["auto"];
  EXPECT_EQ(chosen["asked"], "tc@auto");
  EXPECT_EQ(chosen["context"], 1024);
  EXPECT_EQ(chosen["available_bytes"], limit);
  const KvShape shape = config_.kv_shape(kBlock);
  const auto codec = MakeCodec("tc@2.7", shape, rope_, calibration_.tables);
  EXPECT_DOUBLE_EQ(chosen["bits"], BitsPerElement(**codec, shape));
  int64_t page_bytes = 0;
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head)
      page_bytes += (*codec)->PageSize(layer, head).total();
  }
  EXPECT_DOUBLE_EQ(chosen["bytes_per_token"], static_cast<double>(page_bytes) / kBlock);
  const HeldOutPoint cost = HeldOutAt(*calibration_.info.held_out, 2.7);
  EXPECT_DOUBLE_EQ(chosen["kl"], cost.kl);
  EXPECT_DOUBLE_EQ(chosen["nats"], cost.nats);
  EXPECT_NE(chosen["estimate"].get<std::string>().find("2 x 128 tokens"), std::string::npos);
  const ProcessResult loud = Kvring(Words("tc@auto", limit, 1024));
  EXPECT_NE(loud.err.find("codec    tc@auto: 2.7 bits a coefficient fit for 1,024 tokens"),
            std::string::npos)
      << loud.err;
  // The answer is that of the codec by name, and options stay with it.
  const auto named = Json(Words("tc@2.7", 0, 1024));
  EXPECT_EQ(named["logits_hash"], json["logits_hash"]);
  EXPECT_FALSE(named.contains("auto"));
  EXPECT_EQ(Json(Words("tc@auto:adapt", 0, 1024))["kv"], "tc@6:adapt");

  Calibration without = calibration_;
  without.info.held_out.reset();
  ASSERT_TRUE(WriteCalibration(without, tables_).ok());
  const auto unknown = Json(Words("tc@auto", limit, 1024))["auto"];
  EXPECT_TRUE(unknown["nats"].is_null());
  EXPECT_EQ(unknown["estimate"], "unknown: the artifact has none");
}

TEST_F(AutoRateTest, RefusesInOneLine) {
  const int64_t least = Needs("tc@1", 2048, 1);
  const auto codec = MakeCodec("tc@1", config_.kv_shape(kBlock), rope_, calibration_.tables);
  const ShardMap map = *ShardMap::Create(1, 64, kBlock, 0);
  const int64_t fits =
      LargestContext(config_, **codec, map, Engine::kMaxChunk, kRule, least - 1, 2048);
  ASSERT_GT(fits, 1000);
  ASSERT_LT(fits, 2048);
  const std::string hundreds = std::to_string(fits % 1000 + 1000).substr(1);
  ExpectRefused(Kvring(Words("tc@auto", least - 1, 2048)),
                {"not enough memory", "2,048 tokens with --kv tc@1 ",
                 "enough for " + std::to_string(fits / 1000) + "," + hundreds + " tokens"});
  ExpectRefused(Mpirun(2, Words("tc@auto", 1024, 2048)), {"not enough memory"});
  ExpectRefused(Kvring(Words("tc@auto:loud", 0, 2048)), {"loud"});
  ExpectRefused(Kvring(Words("tc@auto", 0, 2048, {"--memory-limit", "lots"})), {"lots"});
  ExpectRefused(Kvring({"run", "-m", model(), "-p", "x", "--kv", "tc@auto"}),
                {"--kv tc needs a calibration", "kvring calibrate -m"});
  ExpectRefused(Kvring({"eval", "-m", model(), "-f", text_, "--kv", "rot4,tc@auto", "--calibration",
                        tables_}),
                {"tc@auto", "tc@2.7"});
}

}  // namespace
}  // namespace kvring
