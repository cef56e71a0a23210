// SPDX-License-Identifier: Apache-2.0
#include "runtime/eval/retrieval.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "kernels/elementwise.h"
#include "runtime/base/clock.h"
#include "runtime/eval/bootstrap.h"
#include "runtime/eval/eval_group.h"

namespace kvring {
namespace {

constexpr SequenceId kText = 1;  // questions are asked to the sequences behind it

struct NeedleScore {
  double log_prob = 0;
  bool found = false;
};

struct Candidate : EvalSubject {
  RetrievalRow row;
  std::vector<NeedleScore> scores;  // [texts][depths]
  double tokens = 0;
};

absl::StatusOr<Candidate> MakeCandidate(const EvalOptions& o, const std::string& spec) {
  Candidate c;
  KVRING_ASSIGN_OR_RETURN(static_cast<EvalSubject&>(c), MakeEvalSubject(o, spec));
  return c;
}

absl::Status ReadText(const EvalOptions& o, Candidate& c, const std::vector<int32_t>& ids) {
  Executor& leader = c.group->leader();
  const int64_t length = static_cast<int64_t>(ids.size());
  const int64_t chunk = o.chunk > 0 ? o.chunk : length;
  for (int64_t begin = 0; begin < length; begin += chunk) {
    StepPlan plan;
    plan.numerics = o.numerics;
    if (begin == 0) plan.ops.push_back({SequenceOp::Kind::kCreate, kText, 0, 0, 0});
    const int64_t end = std::min(length, begin + chunk);
    plan.slices.push_back(MakeEvalSlice(leader.codec(), kText, ids, begin, end, Want::kNothing));
    plan.report = end == length;
    KVRING_ASSIGN_OR_RETURN(const StepResult result, leader.Lead(plan));
    c.Count(result.reports);
    for (const RankReport& rank : result.reports) c.tokens += static_cast<double>(rank.tokens);
  }
  return absl::OkStatus();
}

// hidden: rows of question and answer; the row before a token predicts it.
absl::StatusOr<NeedleScore> ScoreAnswer(const EvalOptions& o, const Transformer& transformer,
                                        const Needle& needle, std::span<const float> hidden) {
  const ModelConfig& config = o.weights->config();
  const int64_t count = static_cast<int64_t>(needle.answer.size());
  const int64_t first = static_cast<int64_t>(needle.question.size()) - 1;
  std::vector<float> logits(count * config.vocab);
  KVRING_RETURN_IF_ERROR(transformer.Logits(
      hidden.subspan(first * config.hidden, count * config.hidden), count, logits.data()));
  NeedleScore score{0, true};
  for (int64_t i = 0; i < count; ++i) {
    const float* const row = logits.data() + i * config.vocab;
    score.log_prob += row[needle.answer[i]] - LogSumExp(row, config.vocab);
    score.found &= std::max_element(row, row + config.vocab) - row == needle.answer[i];
  }
  return score;
}

// All questions of one text in one step, each to a fork of its own: none sees another's.
absl::StatusOr<std::vector<NeedleScore>> Ask(const EvalOptions& o, RankGroup& group, int64_t length,
                                             const std::vector<Needle>& needles) {
  StepPlan plan;
  plan.numerics = o.numerics;
  for (size_t j = 0; j < needles.size(); ++j) {
    const SequenceId id = kText + 1 + j;
    plan.ops.push_back({SequenceOp::Kind::kFork, id, kText, length, 0});
    std::vector<int32_t> ids = needles[j].question;
    ids.insert(ids.end(), needles[j].answer.begin(), needles[j].answer.end());
    Slice slice = MakeEvalSlice(group.leader().codec(), id, ids, 0, ids.size(), Want::kAll);
    slice.begin = length;
    const int64_t prefix = group.leader().codec().traits().prefix_tokens;
    slice.mean_exchange = length < prefix && slice.end() >= prefix;
    plan.slices.push_back(std::move(slice));
  }
  KVRING_ASSIGN_OR_RETURN(const StepResult result, group.leader().Lead(plan));
  std::vector<NeedleScore> scores;
  for (size_t j = 0; j < needles.size(); ++j) {
    KVRING_ASSIGN_OR_RETURN(
        scores.emplace_back(),
        ScoreAnswer(o, group.leader().transformer(), needles[j], result.outputs[j].hidden));
  }
  return scores;
}

absl::Status CloseAll(const EvalOptions& o, RankGroup& group, size_t forks) {
  StepPlan plan;
  plan.numerics = o.numerics;
  for (SequenceId id = kText; id <= kText + forks; ++id)
    plan.ops.push_back({SequenceOp::Kind::kClose, id, 0, 0, 0});
  return group.leader().Lead(plan).status();
}

absl::StatusOr<std::vector<NeedleScore>> RunText(const EvalOptions& o, Candidate& c,
                                                 const std::vector<int32_t>& ids,
                                                 const std::vector<Needle>& needles) {
  const Stopwatch watch;
  KVRING_RETURN_IF_ERROR(ReadText(o, c, ids));
  KVRING_ASSIGN_OR_RETURN(const std::vector<NeedleScore> scores,
                          Ask(o, *c.group, static_cast<int64_t>(ids.size()), needles));
  KVRING_RETURN_IF_ERROR(CloseAll(o, *c.group, needles.size()));
  c.row.seconds += watch.Seconds();
  return scores;
}

RetrievalRow Summarize(const EvalOptions& o, const Candidate& c,
                       const std::vector<NeedleScore>& base, int depths) {
  RetrievalRow row = c.row;
  row.kv = c.kv;
  row.bits = c.bits;
  row.drift = c.drift;
  const double n = static_cast<double>(c.scores.size()), texts = n / depths;
  row.depth_log_prob.assign(depths, 0);
  row.depth_found.assign(depths, 0);
  row.depth_over_f16.assign(depths, 0);
  std::vector<float> differences;
  for (size_t i = 0; i < c.scores.size(); ++i) {
    const NeedleScore& score = c.scores[i];
    row.needle_log_prob.push_back(static_cast<float>(score.log_prob));
    differences.push_back(static_cast<float>(score.log_prob - base[i].log_prob));
    row.log_prob += score.log_prob / n;
    row.found += (score.found ? 1 : 0) / n;
    row.depth_log_prob[i % depths] += score.log_prob / texts;
    row.depth_over_f16[i % depths] += differences.back() / texts;
    row.depth_found[i % depths] += (score.found ? 1 : 0) / texts;
  }
  row.over_f16 = std::accumulate(differences.begin(), differences.end(), 0.0) / n;
  row.ci95 = BootstrapInterval(differences, depths);  // needles of one text hang together
  const ModelConfig& config = o.weights->config();
  if (c.group->leader().codec().traits().growing_page) {
    row.bits =
        8 * c.page_bytes / (c.tokens * config.layers * config.kv_heads * (config.dk + config.dv));
  }
  return row;
}

void AddControl(const std::vector<NeedleScore>& scores, double n, RetrievalResult& result) {
  for (const NeedleScore& score : scores) {
    result.control_log_prob += score.log_prob / n;
    result.control_found += (score.found ? 1 : 0) / n;
  }
}

absl::Status CheckOptions(const EvalOptions& o, const std::vector<NeedleText>& texts) {
  if (o.codecs.empty()) return absl::InvalidArgumentError("--kv names no codec");
  if (texts.empty()) return absl::InvalidArgumentError("no texts to ask about");
  if (o.rule.kind == Visibility::kTeacher && o.chunk > 0) {
    return absl::InvalidArgumentError(
        "--visibility teacher encodes the whole text first: leave out --chunk");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RetrievalResult> EvaluateRetrieval(const EvalOptions& o,
                                                  const std::vector<NeedleText>& texts,
                                                  const EvalProgress& progress) {
  KVRING_RETURN_IF_ERROR(CheckOptions(o, texts));
  const int depths = static_cast<int>(texts.front().needles.size());
  const double n = static_cast<double>(texts.size()) * depths;
  std::vector<Candidate> all;
  KVRING_ASSIGN_OR_RETURN(all.emplace_back(), MakeCandidate(o, "f16"));  // the reference
  for (const std::string& spec : o.codecs) {
    KVRING_ASSIGN_OR_RETURN(all.emplace_back(), MakeCandidate(o, spec));
  }
  RetrievalResult result;
  const int64_t total = static_cast<int64_t>(texts.size() * all.size());
  int64_t done = 0;
  for (const NeedleText& text : texts) {
    for (Candidate& c : all) {
      const bool again = &c != &all[0] && c.spec == all[0].spec;  // the reference: not run twice
      std::vector<NeedleScore> scores;
      if (again) {
        scores.assign(all[0].scores.end() - depths, all[0].scores.end());
      } else {
        KVRING_ASSIGN_OR_RETURN(scores, RunText(o, c, text.ids, text.needles));
      }
      c.scores.insert(c.scores.end(), scores.begin(), scores.end());
      if (again) c.row.seconds = all[0].row.seconds;
      if (progress) progress(++done, total);
    }
    Candidate control;
    std::swap(control.group, all[0].group);
    absl::StatusOr<std::vector<NeedleScore>> without =
        RunText(o, control, text.excerpt, text.needles);
    std::swap(control.group, all[0].group);
    KVRING_RETURN_IF_ERROR(without.status());
    AddControl(*without, n, result);
  }
  for (size_t i = 1; i < all.size(); ++i)
    result.rows.push_back(Summarize(o, all[i], all[0].scores, depths));
  for (Candidate& c : all) KVRING_RETURN_IF_ERROR(c.group->Stop());
  return result;
}

}  // namespace kvring
