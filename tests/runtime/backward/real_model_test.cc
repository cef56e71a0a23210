// SPDX-License-Identifier: Apache-2.0
// The small real model: gradients of a short window are numbers, and none of them is missing.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "runtime/backward/backward_pass.h"
#include "tests/support/paths.h"

namespace kvring {
namespace {

// The first n ids of the stored stretch of a novel (tests/golden/reference/README.md).
std::vector<int32_t> NovelIds(int64_t n) {
  std::ifstream in("tests/golden/reference/moby-dick-4096.ids16", std::ios::binary);
  std::vector<uint16_t> ids(static_cast<size_t>(n));
  in.read(reinterpret_cast<char*>(ids.data()), n * 2);
  EXPECT_TRUE(in.good()) << "run from the project's root";
  return {ids.begin(), ids.end()};
}

double SumSquares(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

TEST(BackwardRealModel, EveryLayerHasFiniteGradients) {
  const std::string path = RealModelPath();
  if (path.empty()) {
    GTEST_SKIP() << "no small real model: run launch/fetch_model.sh or set KVRING_TEST_MODEL";
  }
  const std::shared_ptr<const GgufFile> file = GgufFile::Open(path).value();
  const ModelConfig config = DeriveModelConfig(*file).value();
  WeightsOptions options;
  options.keep_for_backward = true;
  auto pass = BackwardPass::Create(Weights::Load(file, config, options).value()).value();
  int layers = 0;
  const auto loss = pass->Run(NovelIds(64), [&](const LayerGradients& g) {
    ++layers;
    const double k = SumSquares(g.dk, g.rows * config.kv_heads * config.dk);
    const double v = SumSquares(g.dv, g.rows * config.kv_heads * config.dv);
    EXPECT_TRUE(std::isfinite(k) && std::isfinite(v)) << g.layer;
    EXPECT_TRUE(k > 0 && v > 0) << g.layer;
  });
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_EQ(layers, config.layers);
  // A language model is far better than a guess among 49152 tokens (10.8 nats), and no seer.
  EXPECT_GT(*loss, 1.0);
  EXPECT_LT(*loss, 6.0);
}

}  // namespace
}  // namespace kvring
