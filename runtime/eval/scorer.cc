// SPDX-License-Identifier: Apache-2.0
#include "runtime/eval/scorer.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise.h"
#include "kernels/parallel.h"

namespace kvring {
namespace {

constexpr int64_t kTileRows = 64;  // 64 rows of 49,152 logits are 12 MiB

int32_t ArgMax(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

}  // namespace

RowScore ScoreRow(std::span<const float> reference, double reference_lse,
                  std::span<const float> logits, int32_t next) {
  const double lse = LogSumExp(logits.data(), static_cast<int64_t>(logits.size()));
  const double shift = lse - reference_lse;
  double kl = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    // exp in fp32 on a difference formed in double: 1e-7 relative, far below what KL is used for.
    const float p = std::exp(static_cast<float>(reference[i] - reference_lse));
    kl += p * (static_cast<double>(reference[i]) - logits[i] + shift);
  }
  return {lse - logits[next], kl, ArgMax(reference) == ArgMax(logits)};
}

absl::StatusOr<std::vector<WindowScore>> ScoreWindow(const Transformer& transformer, int64_t width,
                                                     int64_t vocab, std::span<const int32_t> ids,
                                                     std::span<const float> reference,
                                                     std::span<const std::vector<float>> hidden) {
  const int64_t scored = static_cast<int64_t>(ids.size()) - 1;
  std::vector<WindowScore> scores(hidden.size());
  for (WindowScore& score : scores) {
    score.nats.resize(scored);
    score.kl.resize(scored);
  }
  std::vector<float> base(kTileRows * vocab), mine(kTileRows * vocab);
  std::vector<double> lse(kTileRows);
  std::vector<RowScore> rows(kTileRows);
  for (int64_t first = 0; first < scored; first += kTileRows) {
    const int64_t count = std::min(kTileRows, scored - first);
    KVRING_RETURN_IF_ERROR(
        transformer.Logits(reference.subspan(first * width, count * width), count, base.data()));
    ParallelFor(count, [&](int64_t r) { lse[r] = LogSumExp(base.data() + r * vocab, vocab); });
    for (size_t c = 0; c < hidden.size(); ++c) {
      const std::span<const float> tile(hidden[c].data() + first * width, count * width);
      KVRING_RETURN_IF_ERROR(transformer.Logits(tile, count, mine.data()));
      ParallelFor(count, [&](int64_t r) {
        rows[r] =
            ScoreRow({base.data() + r * vocab, static_cast<size_t>(vocab)}, lse[r],
                     {mine.data() + r * vocab, static_cast<size_t>(vocab)}, ids[first + r + 1]);
      });
      for (int64_t r = 0; r < count; ++r) {
        scores[c].nats[first + r] = static_cast<float>(rows[r].nats);
        scores[c].kl[first + r] = rows[r].kl;
        scores[c].top1_agree += rows[r].agrees ? 1 : 0;
      }
    }
  }
  return scores;
}

}  // namespace kvring
