// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibrate/nuq_calibrator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/parallel.h"
#include "kvstore/codec_spec.h"
#include "runtime/calibrate/moment_match.h"
#include "runtime/calibrate/normalized_side.h"
#include "tests/runtime/calibrate/nuq_reference.h"

namespace kvring {
namespace {

absl::StatusOr<std::unique_ptr<NuqCalibrator>> Make(const SyntheticText& text,
                                                    const std::vector<std::string>& codecs) {
  NuqCalibratorOptions options;
  options.shape = text.shape;
  options.rope = text.RopePointers();
  options.codecs = codecs;
  options.window = text.window;
  options.windows = static_cast<int64_t>(text.windows.size());
  return NuqCalibrator::Create(options);
}

struct Calibrated {
  std::shared_ptr<CodecTables> tables = std::make_shared<CodecTables>();
  std::vector<std::string> ids, notes;
};

Calibrated CalibrateOn(const SyntheticText& text, const std::vector<std::string>& codecs,
                       const std::vector<int>& order = {}, const std::vector<int>& gradients = {}) {
  Calibrated done;
  auto calibrator = Make(text, codecs);
  EXPECT_TRUE(calibrator.ok()) << calibrator.status();
  if (!calibrator.ok()) return done;
  EXPECT_TRUE(text.Feed(**calibrator, order, gradients).ok());
  EXPECT_GT((*calibrator)->bytes(), 0);
  EXPECT_TRUE((*calibrator)->Finish(*done.tables, {}).ok());
  done.ids = (*calibrator)->table_ids();
  done.notes = (*calibrator)->notes();
  return done;
}

std::vector<float> RowOf(const CodecTables& tables, const std::string& name, int layer) {
  const CodecTable* table = tables.Find(name);
  EXPECT_NE(table, nullptr) << name;
  if (table == nullptr) return {};
  const int64_t columns = table->shape.back();
  return {table->values.begin() + layer * columns, table->values.begin() + (layer + 1) * columns};
}

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, double tolerance,
                const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << what << i;
}

WeightedHistogram HistogramOf(const ReferenceSide& side, bool unit_weights = false) {
  WeightedHistogram histogram(kHistogramBins);
  for (const auto& e : side.elements) histogram.Add(e.u, unit_weights ? 1.0 : e.weight);
  return histogram;
}

// The least even number of slots that leaves at most 1 % of the outliers out, by trying them all.
int LeastSlots(const std::vector<int>& blocks) {
  int64_t all = 0;
  for (const int n : blocks) all += n;
  for (int slots = 1;; ++slots) {
    int64_t over = 0;
    for (const int n : blocks) over += std::max(0, n - slots);
    if (static_cast<double>(over) <= 0.01 * static_cast<double>(all)) return slots + slots % 2;
  }
}

struct Subject {
  std::string name;
  std::vector<std::string> flags;
  std::string spec() const {
    std::string all = name;
    for (const std::string& flag : flags) all += ":" + flag;
    return all;
  }
};

class NuqTables : public testing::TestWithParam<Subject> {};

void CheckDatatype(const CodecTables& tables, const std::string& id, const std::string& name,
                   const std::string& decode, int layer, const ReferenceSide& side, int bits,
                   bool qnorm) {
  const int clusters[] = {1 << bits};
  const std::vector<float> want = WeightedKMeans(HistogramOf(side), clusters)[0];
  const std::vector<float> got = RowOf(tables, id + "/" + name, layer);
  // Both sum the same elements, in another order: centroids agree to the rounding of fp32.
  ExpectNear(got, want, 2e-7, id + " " + name);
  if (!qnorm) {
    EXPECT_EQ(tables.Find(id + "/" + decode), nullptr);
    return;
  }
  const WeightedHistogram unit = HistogramOf(side, true);
  ExpectNear(RowOf(tables, id + "/" + decode, layer), DecodeTable(MatchMoments(unit, want), want),
             1e-6, id + " " + decode);
}

void CheckSide(const CodecTables& tables, const std::string& id, const std::string& side, int layer,
               const ReferenceSide& reference, double fraction) {
  if (reference.lo.empty()) {
    EXPECT_EQ(tables.Find(id + "/" + side + "_lo"), nullptr);
  } else {
    // Interpolation from the other end: see parts_test. Keys here reach about 30.
    ExpectNear(RowOf(tables, id + "/" + side + "_lo", layer), reference.lo, 4e-6, "lo");
    ExpectNear(RowOf(tables, id + "/" + side + "_hi", layer), reference.hi, 4e-6, "hi");
  }
  const std::vector<float> slots = RowOf(tables, id + "/" + side + "_slots", layer);
  const std::vector<float> means = RowOf(tables, id + "/" + side + "_outliers", layer);
  for (size_t h = 0; h < reference.block_outliers.size(); ++h) {
    const int want = fraction > 0 ? LeastSlots(reference.block_outliers[h]) : 0;
    EXPECT_EQ(slots[h], want) << id << " " << side << ", head " << h;
    EXPECT_EQ(means[h] > 0, fraction > 0);
  }
}

TEST_P(NuqTables, AreWhatTheSpecSays) {
  const Subject& subject = GetParam();
  const CodecRow* const row = FindCodec(subject.name);
  ASSERT_NE(row, nullptr);
  const SyntheticText text = MakeSyntheticText(3, 1);
  const Calibrated done = CalibrateOn(text, {subject.spec()});
  ASSERT_EQ(done.ids, (std::vector<std::string>{subject.spec()}));
  EXPECT_TRUE(done.notes.empty());
  const NuqTableOptions options = ParseNuqTableOptions(subject.flags);
  const std::string& id = done.ids[0];
  for (int layer = 0; layer < text.shape.layers; ++layer) {
    const ReferenceSide keys =
        ReferenceOf(text, layer, {true, !options.token_keys, false, row->outliers, options});
    const ReferenceSide values =
        ReferenceOf(text, layer, {false, options.channel_values, false, row->outliers, options});
    const ReferenceSide token =
        ReferenceOf(text, layer, {false, options.channel_values, true, row->outliers, options});
    CheckDatatype(*done.tables, id, "k_cent", "k_decode", layer, keys, row->bits, options.qnorm);
    CheckDatatype(*done.tables, id, "v_cent", "v_decode", layer, values, row->bits, options.qnorm);
    CheckDatatype(*done.tables, id, "v_cent_token", "v_decode_token", layer, token, row->bits,
                  options.qnorm);
    CheckSide(*done.tables, id, "k", layer, keys, row->outliers);
    CheckSide(*done.tables, id, "v", layer, values, row->outliers);
  }
  EXPECT_EQ(RowOf(*done.tables, id + "/block_tokens", 0), std::vector<float>{16});
}

std::vector<Subject> Subjects() {
  std::vector<Subject> subjects = {{"nuq4", {}},          {"nuq3", {}},    {"nuq2", {}},
                                   {"nuq4-0.1%", {}},     {"nuq3-1%", {}}, {"nuq2-0.5%", {}},
                                   {"nuq3", {"no-sinks"}}};
  for (const char* flag : {"post-rope", "token-keys", "channel-values", "cap", "qnorm", "fisher",
                           "unweighted", "no-sinks"}) {
    subjects.push_back({"nuq3-1%", {flag}});
  }
  subjects.push_back({"nuq2-1%", {"post-rope", "token-keys", "qnorm", "unweighted"}});
  return subjects;
}

INSTANTIATE_TEST_SUITE_P(Options, NuqTables, testing::ValuesIn(Subjects()), [](const auto& info) {
  std::string name = info.param.spec();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

std::vector<std::string> ManyCodecs() {
  std::vector<std::string> codecs;
  for (const CodecRow& row : AllCodecs()) {
    if (row.calibrated && std::string(row.name).rfind("nuq", 0) == 0) codecs.push_back(row.name);
  }
  for (const char* flag : {"post-rope", "token-keys", "channel-values", "cap", "qnorm", "fisher",
                           "unweighted", "no-sinks"}) {
    codecs.push_back(std::string("nuq2-1%:") + flag);
  }
  return codecs;
}

TEST(NuqCalibrator, OnePassServesManyAndChangesNothing) {
  const SyntheticText text = MakeSyntheticText(2, 3);
  const Calibrated all = CalibrateOn(text, ManyCodecs());
  EXPECT_EQ(all.ids, ManyCodecs());
  for (const char* codec : {"nuq3-0.5%", "nuq2-1%:cap", "nuq2-1%:qnorm"}) {
    const Calibrated alone = CalibrateOn(text, {codec});
    for (const auto& [name, table] : alone.tables->tensors) {
      const CodecTable* const same = all.tables->Find(name);
      ASSERT_NE(same, nullptr) << name;
      EXPECT_EQ(same->shape, table.shape) << name;
      EXPECT_EQ(same->values, table.values) << name;
    }
  }
}

TEST(NuqCalibrator, EveryCodecCanBeMadeOfItsTables) {
  const SyntheticText text = MakeSyntheticText(2, 4);
  const Calibrated all = CalibrateOn(text, ManyCodecs());
  for (const std::string& codec : ManyCodecs()) {
    for (const char* form : {"", ":exact", ":token", ":paper"}) {
      const auto made = MakeCodec(codec + form, text.shape, text.RopePointers(), all.tables);
      EXPECT_TRUE(made.ok()) << codec << form << ": " << made.status();
    }
  }
}

TEST(NuqCalibrator, SameBitsOnAnyNumberOfThreads) {
  const SyntheticText text = MakeSyntheticText(2, 5);
  const int before = Threads();
  SetThreads(1);
  const Calibrated one = CalibrateOn(text, ManyCodecs());
  SetThreads(3);
  const Calibrated three = CalibrateOn(text, ManyCodecs());
  SetThreads(before);
  ASSERT_EQ(one.tables->tensors.size(), three.tables->tensors.size());
  for (const auto& [name, table] : one.tables->tensors) {
    EXPECT_EQ(table.values, three.tables->Find(name)->values) << name;
  }
}

// P13: shuffled windows, gradients with them, give the same tables up to the rounding of sums; gradients shuffled alone do
// not.
TEST(NuqCalibrator, OrderOfWindowsDoesNotMatter) {
  const SyntheticText text = MakeSyntheticText(3, 6);
  const std::vector<std::string> codecs = {"nuq3-1%", "nuq2", "nuq4-0.5%:qnorm"};
  const Calibrated straight = CalibrateOn(text, codecs);
  const Calibrated shuffled = CalibrateOn(text, codecs, {2, 0, 1});
  const Calibrated torn = CalibrateOn(text, codecs, {0, 1, 2}, {2, 0, 1});
  double moved = 0;
  for (const auto& [name, table] : straight.tables->tensors) {
    const std::vector<float>& other = shuffled.tables->Find(name)->values;
    ExpectNear(table.values, other, 1e-6, name);
    const std::vector<float>& wrong = torn.tables->Find(name)->values;
    for (size_t i = 0; i < wrong.size(); ++i) {
      moved = std::max(moved, std::fabs(double{wrong[i]} - table.values[i]));
    }
  }
  EXPECT_GT(moved, 1e-3) << "gradients of other windows must show";
}

TEST(NuqCalibrator, ALayerWithoutGradientGetsEqualWeights) {
  SyntheticText text = MakeSyntheticText(2, 7);
  for (auto& window : text.windows) std::fill(window[1].dk.begin(), window[1].dk.end(), 0.0f);
  const Calibrated silent = CalibrateOn(text, {"nuq3-1%", "nuq3-1%:unweighted"});
  ASSERT_EQ(silent.notes.size(), 1u);
  EXPECT_NE(silent.notes[0].find("layer 1"), std::string::npos) << silent.notes[0];
  EXPECT_NE(silent.notes[0].find("keys"), std::string::npos) << silent.notes[0];
  EXPECT_EQ(RowOf(*silent.tables, "nuq3-1%/k_cent", 1),
            RowOf(*silent.tables, "nuq3-1%:unweighted/k_cent", 1));
  EXPECT_NE(RowOf(*silent.tables, "nuq3-1%/k_cent", 0),
            RowOf(*silent.tables, "nuq3-1%:unweighted/k_cent", 0));
  // One window with a gradient is enough, wherever it stands.
  SyntheticText late = MakeSyntheticText(2, 7);
  std::fill(late.windows[0][1].dk.begin(), late.windows[0][1].dk.end(), 0.0f);
  EXPECT_TRUE(CalibrateOn(late, {"nuq3-1%"}).notes.empty());
}

TEST(NuqCalibrator, ConstantChannelsAndTokensTeachNothing) {
  SyntheticText text = MakeSyntheticText(2, 8);
  for (auto& window : text.windows) {
    for (WindowRows& rows : window) {
      for (size_t i = 0; i < rows.k.size(); i += 96) rows.k[i] = 0.75f;  // channel 0
      std::fill(rows.v.begin() + 144 * 20, rows.v.begin() + 144 * 30, 0.0f);
    }
  }
  const Calibrated done = CalibrateOn(text, {"nuq2-1%"});
  EXPECT_EQ(RowOf(*done.tables, "nuq2-1%/k_lo", 0)[0], 0.75f);
  EXPECT_EQ(RowOf(*done.tables, "nuq2-1%/k_hi", 0)[0], 0.75f);
  for (const auto& [name, table] : done.tables->tensors) {
    for (const float value : table.values) EXPECT_TRUE(std::isfinite(value)) << name;
  }
}

// What the encoder itself counts on the calibration text.
TEST(NuqCalibrator, SlotsHoldWhatWasPromised) {
  const SyntheticText text = MakeSyntheticText(4, 9);
  const Calibrated done = CalibrateOn(text, {"nuq3-1%"});
  const auto made = MakeCodec("nuq3-1%", text.shape, text.RopePointers(), done.tables);
  ASSERT_TRUE(made.ok()) << made.status();
  const int block = text.shape.block_tokens, heads = text.shape.kv_heads;
  int64_t overflow = 0;
  double outliers = 0;
  for (int layer = 0; layer < text.shape.layers; ++layer) {
    for (const char* side : {"k", "v"}) {
      for (const float mean :
           RowOf(*done.tables, std::string("nuq3-1%/") + side + "_outliers", layer))
        outliers += mean * (text.window - kNuqSinks) * static_cast<double>(text.windows.size());
    }
    for (const auto& window : text.windows) {
      for (int64_t begin = 0; begin + block <= text.window; begin += block) {
        std::vector<std::vector<uint8_t>> pages;
        std::vector<uint8_t*> pointers;
        for (int h = 0; h < heads; ++h) pages.emplace_back((*made)->PageSize(layer, h).total());
        for (auto& page : pages) pointers.push_back(page.data());
        std::vector<float> k(window[layer].k), v(window[layer].v);
        for (float& x : k) x = HalfToFloat(FloatToHalf(x));
        for (float& x : v) x = HalfToFloat(FloatToHalf(x));
        EncodeArgs args;
        args.layer = layer;
        args.block_begin = begin;
        args.count = block;
        args.k = k.data() + begin * heads * text.shape.dk;
        args.v = v.data() + begin * heads * text.shape.dv;
        args.pages = pointers.data();
        args.overflow = &overflow;
        ASSERT_FALSE((*made)->Encode(args));
      }
    }
  }
  EXPECT_GT(outliers, 0);
  EXPECT_LE(static_cast<double>(overflow), kOverflowShare * outliers);
}

TEST(NuqCalibrator, RefusesWhatItCannotDo) {
  SyntheticText text = MakeSyntheticText(1, 10);
  const auto refused = [&](const std::vector<std::string>& codecs, const std::string& part) {
    const absl::Status status = Make(text, codecs).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(part), std::string::npos) << status;
  };
  refused({}, "no codec");
  refused({"nuq5"}, "nuq5");
  refused({"nuq3-1%", "rot4"}, "rot4");
  refused({"nuq3-1%:what"}, "'what'");
  refused({"nuq3-1%:fisher:unweighted"}, "exclude");
  text.window = 15;
  refused({"nuq3"}, "15");
}

TEST(NuqCalibrator, RunTimeOptionsShareTables) {
  const SyntheticText text = MakeSyntheticText(1, 11);
  const auto made = Make(text, {"nuq3-1%:paper", "nuq3-1%", "nuq3-1%:exact:cap"});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)->table_ids(), (std::vector<std::string>{"nuq3-1%", "nuq3-1%:cap"}));
}

TEST(NuqCalibrator, NumbersThatAreNoneAreReported) {
  SyntheticText text = MakeSyntheticText(2, 12);
  text.windows[1][1].k[5 * 96 + 7] = std::numeric_limits<float>::quiet_NaN();
  auto calibrator = Make(text, {"nuq3-1%"});
  ASSERT_TRUE(calibrator.ok());
  const absl::Status keys = text.Feed(**calibrator);
  EXPECT_FALSE(keys.ok());
  EXPECT_NE(keys.message().find("layer 1, channel 7"), std::string::npos) << keys;

  SyntheticText steep = MakeSyntheticText(1, 12);
  steep.windows[0][0].dv[3] = std::numeric_limits<float>::infinity();
  calibrator = Make(steep, {"nuq3-1%"});
  ASSERT_TRUE(steep.Feed(**calibrator).ok());
  CodecTables tables;
  const absl::Status gradients = (*calibrator)->Finish(tables, {});
  EXPECT_NE(gradients.message().find("gradient of a value"), std::string::npos) << gradients;
}

}  // namespace
}  // namespace kvring
