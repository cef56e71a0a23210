// SPDX-License-Identifier: Apache-2.0
#include "runtime/eval/bootstrap.h"

#include <algorithm>
#include <random>

namespace kvring {
namespace {

struct BlockSum {
  double sum;
  int64_t count;
};

std::vector<BlockSum> SumBlocks(const std::vector<float>& values, int block) {
  std::vector<BlockSum> blocks;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % block == 0) blocks.push_back({0, 0});
    blocks.back().sum += values[i];
    ++blocks.back().count;
  }
  return blocks;
}

}  // namespace

std::pair<double, double> BootstrapInterval(const std::vector<float>& differences, int block,
                                            int draws) {
  const std::vector<BlockSum> blocks = SumBlocks(differences, block);
  if (blocks.empty()) return {0, 0};
  std::mt19937_64 random(20240131);  // any fixed seed: the interval must not change from run to run
  std::vector<double> means(draws);
  for (double& mean : means) {
    BlockSum total{0, 0};
    for (size_t i = 0; i < blocks.size(); ++i) {
      const BlockSum& drawn = blocks[random() % blocks.size()];
      total.sum += drawn.sum;
      total.count += drawn.count;
    }
    mean = total.sum / static_cast<double>(total.count);
  }
  std::sort(means.begin(), means.end());
  return {means[static_cast<size_t>(draws * 0.025)], means[static_cast<size_t>(draws * 0.975)]};
}

}  // namespace kvring
