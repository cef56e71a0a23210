// SPDX-License-Identifier: Apache-2.0
// Gradients against finite differences in double, against PyTorch's autograd (tests/golden/backward), and laws.
#include "runtime/backward/backward_pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <random>

#include "kernels/parallel.h"
#include "runtime/model/tiny_model.h"
#include "tests/runtime/backward/double_model.h"
#include "tests/support/numeric.h"
#include "tests/support/paths.h"

namespace kvring {
namespace {

struct Loaded {
  std::shared_ptr<const std::string> bytes;  // the file looks into them
  std::shared_ptr<const GgufFile> file;
  ModelConfig config;
  std::shared_ptr<const Weights> weights;
};

WeightsOptions BackwardWeights() {
  WeightsOptions options;
  options.keep_for_backward = true;
  return options;
}

Loaded Load(const TinyModelOptions& options, const WeightsOptions& weights = BackwardWeights()) {
  Loaded model;
  model.bytes = std::make_shared<std::string>(MakeTinyModel(options).value().Bytes());
  const std::span<const uint8_t> view(reinterpret_cast<const uint8_t*>(model.bytes->data()),
                                      model.bytes->size());
  model.file = GgufFile::FromMemory(view, "generated model").value();
  model.config = DeriveModelConfig(*model.file).value();
  model.weights = Weights::Load(model.file, model.config, weights).value();
  return model;
}

// What a sink saw of one layer.
struct Seen {
  std::vector<float> k, v, dk, dv;
};
struct Window {
  double loss = 0;
  std::vector<int> order;
  std::map<int, Seen> layers;
};

GradientSink Collect(const ModelConfig& c, Window* window) {
  return [&c, window](const LayerGradients& g) {
    const int64_t nk = g.rows * c.kv_heads * c.dk, nv = g.rows * c.kv_heads * c.dv;
    Seen& seen = window->layers[g.layer];
    window->order.push_back(g.layer);
    seen.k.assign(g.k, g.k + nk);
    seen.v.assign(g.v, g.v + nv);
    if (g.dk != nullptr) seen.dk.assign(g.dk, g.dk + nk);
    if (g.dv != nullptr) seen.dv.assign(g.dv, g.dv + nv);
  };
}

Window RunWindow(const Loaded& model, std::span<const int32_t> ids) {
  Window window;
  auto pass = BackwardPass::Create(model.weights).value();
  window.loss = pass->Run(ids, Collect(model.config, &window)).value();
  return window;
}

std::vector<int32_t> SomeIds(int64_t n, int32_t vocab) {
  std::mt19937 generator(5);
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int32_t& id : ids) id = static_cast<int32_t>(generator() % static_cast<uint32_t>(vocab));
  return ids;
}

TinyModelOptions Small(uint64_t seed) {
  TinyModelOptions options;
  options.seed = seed;
  options.hidden = 32;
  options.ffn = 48;
  options.vocab = 259;
  options.query_heads = 4;
  options.kv_heads = 2;
  options.head_dim = 8;
  return options;
}

TinyModelOptions Scaled(uint64_t seed, const std::string& scaling) {
  TinyModelOptions options = Small(seed);
  options.rope_scaling = scaling;
  options.rope_base = 100;
  options.rope_factor = 4;
  options.rope_original_context = 64;
  return options;
}

TinyModelOptions Qwen(uint64_t seed) {
  TinyModelOptions options = Small(seed);
  options.architecture = "qwen2";
  options.output = TinyOutput::kOwn;
  return options;
}

double Largest(std::span<const float> x) {
  double most = 0;
  for (float v : x) most = std::max(most, std::fabs(static_cast<double>(v)));
  return most;
}

// Roundings on the longest path from an activation to the loss and back: every sum of n terms counts n (numeric.h), twice
// a layer. An error of one unit in each moves a gradient by about a unit of the largest one in its layer.
double PathUnits(const ModelConfig& c, int64_t rows) {
  const double layer = 3.0 * c.hidden + c.query_heads * c.dv + 2.0 * c.ffn + c.dk + 2.0 * c.dv +
                       static_cast<double>(rows);
  return (2 * layer * c.layers + c.hidden + c.vocab) * kUnitF32;
}

void ExpectFiniteDifferences(const TinyModelOptions& options, int64_t rows) {
  const Loaded model = Load(options);
  const std::vector<int32_t> ids = SomeIds(rows, model.config.vocab);
  const Window window = RunWindow(model, ids);
  const DoubleModel plain(*model.file, model.config);
  EXPECT_NEAR(window.loss, plain.Loss(ids, {}), PathUnits(model.config, rows) * window.loss);
  std::mt19937 generator(17);
  for (const auto& [layer, seen] : window.layers) {
    for (const bool value : {false, true}) {
      const std::vector<float>& g = value ? seen.dv : seen.dk;
      const double unit = PathUnits(model.config, rows) * Largest(g);
      ASSERT_GT(unit, 0);
      for (int i = 0; i < 24; ++i) {
        // Early tokens are seen by many rows, the last by itself alone: both ends, then anywhere.
        const auto n = static_cast<int64_t>(g.size());
        const int64_t at = i < 4 ? i : i < 8 ? n - 1 - i : static_cast<int64_t>(generator() % n);
        double error = 0;
        const double want = plain.Gradient(ids, {layer, value, at, 0}, &error);
        // Differences of steps h and h/2 agree to O(h^2), the extrapolated one to O(h^4): a hundredth is generous.
        EXPECT_NEAR(g[at], want, unit + error / 100 + 1e-11)
            << "layer " << layer << (value ? " value " : " key ") << at;
      }
    }
  }
}

TEST(BackwardPass, FiniteDifferencesLlama) {
  TinyModelOptions options = Small(1);
  options.value_dim = 12;
  ExpectFiniteDifferences(options, 20);
}
TEST(BackwardPass, FiniteDifferencesQwen2) { ExpectFiniteDifferences(Qwen(2), 20); }
TEST(BackwardPass, FiniteDifferencesYarn) { ExpectFiniteDifferences(Scaled(3, "yarn"), 20); }
// More than one block of attention, three layers, one KV head.
TEST(BackwardPass, FiniteDifferencesOverBlocks) {
  TinyModelOptions options = Small(4);
  options.layers = 3;
  options.kv_heads = 1;
  ExpectFiniteDifferences(options, 70);
}

// The golden file: "ids n ..", then per case "case name loss" and per layer and side "layer side n numbers".
class Autograd : public testing::TestWithParam<std::pair<std::string, TinyModelOptions>> {};

TEST_P(Autograd, AgreesWithPyTorch) {
  std::ifstream in("tests/golden/backward/gradients.txt");
  std::string word, name;
  size_t count = 0;
  ASSERT_TRUE(in >> word >> count) << "run from the project's root";
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) in >> id;
  double loss = 0;
  while (in >> word && !(word == "case" && in >> name >> loss && name == GetParam().first)) {
  }
  ASSERT_EQ(name, GetParam().first);

  const Loaded model = Load(GetParam().second);
  const Window window = RunWindow(model, ids);
  const double units = PathUnits(model.config, static_cast<int64_t>(ids.size()));
  EXPECT_NEAR(window.loss, loss, units * loss);
  int layer = 0, sides = 0;
  while (in >> layer >> word >> count) {
    std::vector<float> want(count);
    for (float& x : want) in >> x;
    const Seen& seen = window.layers.at(layer);
    // Stored with 7 digits.
    EXPECT_TRUE(AllNear(word == "k" ? seen.dk : seen.dv, want, {units * Largest(want), 5e-7}))
        << layer << word;
    ++sides;
  }
  EXPECT_EQ(sides, 2 * model.config.layers);
}

TinyModelOptions Plain() {
  TinyModelOptions options = Small(11);
  options.value_dim = 12;
  return options;
}

INSTANTIATE_TEST_SUITE_P(Golden, Autograd,
                         testing::Values(std::pair{"plain", Plain()}, std::pair{"qwen2", Qwen(12)},
                                         std::pair{"linear", Scaled(13, "linear")},
                                         std::pair{"llama3", Scaled(14, "llama3")},
                                         std::pair{"yarn", Scaled(15, "yarn")}),
                         [](const auto& info) { return info.param.first; });

TEST(BackwardPass, SinksSeeLayersInOrderAndTheSameKeys) {
  TinyModelOptions options = Small(6);
  options.layers = 3;
  const Loaded model = Load(options);
  const auto ids = SomeIds(33, model.config.vocab);
  Window forward;
  auto pass = BackwardPass::Create(model.weights).value();
  ASSERT_TRUE(pass->Forward(ids, Collect(model.config, &forward)).ok());
  const Window backward = RunWindow(model, ids);
  EXPECT_EQ(forward.order, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(backward.order, (std::vector<int>{2, 1, 0}));
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_TRUE(SameBits(forward.layers[layer].k, backward.layers.at(layer).k));
    EXPECT_TRUE(SameBits(forward.layers[layer].v, backward.layers.at(layer).v));
    EXPECT_TRUE(forward.layers[layer].dk.empty());
  }
}

// One object, windows of several lengths in turn, any number of threads: every window gives its own bits.
TEST(BackwardPass, BitsDependOnTheWindowAlone) {
  const Loaded model = Load(Small(7));
  const int before = Threads();
  SetThreads(1);
  const auto ids = SomeIds(150, model.config.vocab);
  const Window want = RunWindow(model, ids);
  SetThreads(2);
  auto pass = BackwardPass::Create(model.weights).value();
  for (const int64_t rows : {40, 150, 2, 150}) {
    Window got;
    const std::span<const int32_t> window(ids.data(), static_cast<size_t>(rows));
    got.loss = pass->Run(window, Collect(model.config, &got)).value();
    if (rows != 150) continue;
    EXPECT_EQ(got.loss, want.loss);
    for (int layer = 0; layer < model.config.layers; ++layer) {
      EXPECT_TRUE(SameBits(got.layers[layer].dk, want.layers.at(layer).dk));
      EXPECT_TRUE(SameBits(got.layers[layer].dv, want.layers.at(layer).dv));
    }
  }
  SetThreads(before);
}

// The last token is only its own query's key, and that query predicts nothing: no gradient, exactly.
TEST(BackwardPass, TheLastTokenHasNoGradient) {
  const Loaded model = Load(Small(8));
  const auto ids = SomeIds(9, model.config.vocab);
  const Window window = RunWindow(model, ids);
  for (const auto& [layer, seen] : window.layers) {
    const int64_t nk = model.config.kv_heads * model.config.dk;
    EXPECT_EQ(Largest({seen.dk.data() + 8 * nk, static_cast<size_t>(nk)}), 0) << layer;
    EXPECT_GT(Largest({seen.dv.data() + 7 * nk, static_cast<size_t>(nk)}), 0) << layer;
  }
}

TEST(BackwardPass, RefusesWeightsThatCannotGoBack) {
  const auto code = [](const WeightsOptions& options) {
    return BackwardPass::Create(Load(Small(9), options).weights).status().code();
  };
  WeightsOptions options;
  EXPECT_EQ(code(options), absl::StatusCode::kFailedPrecondition);
  options = BackwardWeights();
  EXPECT_EQ(code(options), absl::StatusCode::kOk);
  options.output_head = false;
  EXPECT_EQ(code(options), absl::StatusCode::kFailedPrecondition);
}

TEST(BackwardPass, RefusesWindowsThatAreNone) {
  auto pass = BackwardPass::Create(Load(Small(10)).weights).value();
  const GradientSink none = [](const LayerGradients&) { FAIL(); };
  const std::vector<int32_t> one = {3}, outside = {3, 259}, negative = {-1, 3};
  EXPECT_EQ(pass->Run(one, none).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pass->Run(outside, none).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pass->Run(negative, none).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pass->Forward({}, none).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvring
