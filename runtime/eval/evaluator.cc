// SPDX-License-Identifier: Apache-2.0
#include "runtime/eval/evaluator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "runtime/base/clock.h"
#include "runtime/eval/bootstrap.h"
#include "runtime/eval/eval_group.h"
#include "runtime/eval/scorer.h"

namespace kvring {
namespace {

// One codec under test and what has come out so far.
struct Candidate : EvalSubject {
  Candidate(EvalSubject subject, int64_t window) : EvalSubject(std::move(subject)), depth(window) {}

  EvalRow row;
  double kv_bytes = 0;
  std::vector<float> nats, differences;
  DepthSums depth;
  double kl_sum = 0;
  int64_t agree = 0;
};

absl::StatusOr<Candidate> MakeCandidate(const EvalOptions& o, const std::string& spec) {
  KVRING_ASSIGN_OR_RETURN(EvalSubject subject, MakeEvalSubject(o, spec));
  return Candidate(std::move(subject), o.window);
}

StepPlan ChunkPlan(const EvalOptions& o, const Codec& codec, std::span<const int32_t> window,
                   int64_t begin, int64_t end) {
  StepPlan plan;
  plan.numerics = o.numerics;
  if (begin == 0) plan.ops.push_back({SequenceOp::Kind::kCreate, 1, 0, 0, 0});
  plan.slices.push_back(MakeEvalSlice(codec, 1, window, begin, end, Want::kAll));
  plan.report = end == static_cast<int64_t>(window.size());
  return plan;
}

// Hidden rows of the whole window.
absl::StatusOr<std::vector<float>> RunWindow(const EvalOptions& o, Candidate& c,
                                             std::span<const int32_t> window) {
  const Stopwatch watch;
  const int64_t length = static_cast<int64_t>(window.size());
  const int64_t chunk = o.chunk > 0 ? o.chunk : length;
  std::vector<float> hidden;
  for (int64_t begin = 0; begin < length; begin += chunk) {
    const StepPlan plan =
        ChunkPlan(o, c.group->leader().codec(), window, begin, std::min(length, begin + chunk));
    KVRING_ASSIGN_OR_RETURN(const StepResult result, c.group->leader().Lead(plan));
    const std::vector<float>& rows = result.outputs.front().hidden;
    hidden.insert(hidden.end(), rows.begin(), rows.end());
    c.Count(result.reports);
    for (const RankReport& rank : result.reports) {
      c.kv_bytes += static_cast<double>(rank.kv_bytes);
      c.row.saturated += rank.saturated;
      c.row.overflow += rank.overflow;
      c.row.clamped += rank.clamped;
    }
  }
  StepPlan close;
  close.numerics = o.numerics;
  close.ops.push_back({SequenceOp::Kind::kClose, 1, 0, 0, 0});
  KVRING_RETURN_IF_ERROR(c.group->leader().Lead(close).status());
  c.row.seconds += watch.Seconds();
  return hidden;
}

void AddScore(Candidate& c, const WindowScore& score, const WindowScore& base) {
  c.row.window_nats.push_back(std::accumulate(score.nats.begin(), score.nats.end(), 0.0));
  const double kl = std::accumulate(score.kl.begin(), score.kl.end(), 0.0);
  c.row.window_kl.push_back(kl / static_cast<double>(score.kl.size()));
  c.nats.insert(c.nats.end(), score.nats.begin(), score.nats.end());
  for (size_t i = 0; i < score.nats.size(); ++i)
    c.differences.push_back(score.nats[i] - base.nats[i]);
  c.kl_sum += kl;
  c.agree += score.top1_agree;
  c.depth.Add(score, base);
}

// Bits per element where pages grow: what the windows' pages took.
double MeasuredBits(const EvalOptions& o, const Candidate& c) {
  const ModelConfig& config = o.weights->config();
  const double row = static_cast<double>(config.layers) * config.kv_heads * (config.dk + config.dv);
  return 8 * c.page_bytes / (row * static_cast<double>(o.window * o.windows));
}

EvalRow Summarize(const EvalOptions& o, Candidate& c) {
  const double n = static_cast<double>(c.nats.size());
  c.row.kv = c.kv;
  c.row.bits = c.bits;
  c.row.drift = c.drift;
  c.row.nats = std::accumulate(c.nats.begin(), c.nats.end(), 0.0) / n;
  c.row.ppl = std::exp(c.row.nats);
  c.row.nats_over_f16 = std::accumulate(c.differences.begin(), c.differences.end(), 0.0) / n;
  c.row.ci95 = BootstrapInterval(c.differences);
  c.row.kl = c.kl_sum / n;
  c.row.top1 = static_cast<double>(c.agree) / n;
  c.row.by_depth = c.depth.Ranges();
  if (c.group->leader().codec().traits().growing_page) c.row.bits = MeasuredBits(o, c);
  c.row.bytes_per_token = c.kv_bytes / static_cast<double>(o.window * o.windows);
  return c.row;
}

absl::Status CheckOptions(const EvalOptions& o, const std::vector<int32_t>& ids) {
  if (o.codecs.empty()) return absl::InvalidArgumentError("--kv names no codec");
  if (o.window < 2)
    return absl::InvalidArgumentError(absl::StrCat("--window ", o.window, ": at least 2 tokens"));
  if (o.windows < 1)
    return absl::InvalidArgumentError(absl::StrCat("--windows ", o.windows, ": at least 1"));
  const int64_t have = static_cast<int64_t>(ids.size());
  if (o.start < 0 || o.start > have || (have - o.start) / o.window < o.windows) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", have, " tokens; ", o.windows, " windows of ", o.window,
                     " from token ", o.start, " need ", o.start + o.window * o.windows));
  }
  if (o.rule.kind == Visibility::kTeacher && o.chunk > 0 && o.chunk < o.window) {
    return absl::InvalidArgumentError(
        "--visibility teacher encodes the whole window first: leave out --chunk");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<EvalRow>> Evaluate(const EvalOptions& o, const std::vector<int32_t>& ids,
                                              const EvalProgress& progress) {
  KVRING_RETURN_IF_ERROR(CheckOptions(o, ids));
  const ModelConfig& config = o.weights->config();
  std::vector<Candidate> all;
  KVRING_ASSIGN_OR_RETURN(Candidate reference, MakeCandidate(o, "f16"));
  for (const std::string& spec : o.codecs) {
    KVRING_ASSIGN_OR_RETURN(Candidate c, MakeCandidate(o, spec));
    all.push_back(std::move(c));
  }
  const int64_t total = o.windows * static_cast<int64_t>(all.size());
  for (int64_t w = 0; w < o.windows; ++w) {
    const std::span<const int32_t> window(ids.data() + o.start + w * o.window, o.window);
    std::vector<std::vector<float>> hidden(all.size() + 1);
    KVRING_ASSIGN_OR_RETURN(hidden[0], RunWindow(o, reference, window));
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].spec == reference.spec) {  // the reference itself: not run twice
        hidden[i + 1] = hidden[0];
        all[i].row.seconds = reference.row.seconds;
        all[i].kv_bytes = reference.kv_bytes;
      } else {
        KVRING_ASSIGN_OR_RETURN(hidden[i + 1], RunWindow(o, all[i], window));
      }
      if (progress)
        progress(w * static_cast<int64_t>(all.size()) + static_cast<int64_t>(i) + 1, total);
    }
    const std::vector<float>& base = hidden[0];
    KVRING_ASSIGN_OR_RETURN(const std::vector<WindowScore> scores,
                            ScoreWindow(reference.group->leader().transformer(), config.hidden,
                                        config.vocab, window, base, hidden));
    for (size_t i = 0; i < all.size(); ++i) AddScore(all[i], scores[i + 1], scores[0]);
  }
  std::vector<EvalRow> rows;
  for (Candidate& c : all) {
    KVRING_RETURN_IF_ERROR(c.group->Stop());
    rows.push_back(Summarize(o, c));
  }
  return rows;
}

}  // namespace kvring
