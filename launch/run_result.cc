// SPDX-License-Identifier: Apache-2.0
#include "launch/run_result.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "launch/json_file.h"
#include "launch/progress.h"
#include "launch/result_json.h"

namespace kvring {
namespace {

nlohmann::ordered_json AutoJson(const AutoRate& rate) {
  nlohmann::ordered_json json = {
      {"asked", rate.asked},      {"rate", rate.tenths / 10.0},
      {"context", rate.context},  {"available_bytes", rate.available_bytes},
      {"bits", rate.bits},        {"bytes_per_token", rate.bytes_per_token},
      {"nats", nullptr},          {"kl", nullptr},
      {"estimate", rate.Source()}};
  if (const auto cost = rate.Cost()) {
    json["nats"] = cost->nats;
    json["kl"] = cost->kl;
  }
  return json;
}

}  // namespace

absl::Status WriteRunJson(const RunResult& result, const std::string& path) {
  nlohmann::ordered_json json;
  json["prompt_tokens"] = result.prompt_tokens;
  json["tokens"] = result.tokens;
  json["text"] = result.text;
  json["finish_reason"] = result.finish_reason;
  json["ttft_s"] = result.ttft_s;
  json["prefill_tokens_per_s"] = result.prefill_rate();
  json["decode_tokens_per_s"] = result.decode_rate();
  json["kv"] = result.kv;
  if (!result.auto_rate.asked.empty()) json["auto"] = AutoJson(result.auto_rate);
  json["numerics"] = result.numerics;
  json["kv_bytes"] = result.kv_bytes;
  json["kv_bytes_f16"] = result.kv_bytes_f16;
  json["logits_hash"] = result.logits_hash;
  json["ranks"] = nlohmann::ordered_json::array();
  for (const RankReport& rank : result.ranks) {
    json["ranks"].push_back({{"rank", rank.rank},
                             {"tokens", rank.tokens},
                             {"kv_bytes", rank.kv_bytes},
                             {"peak_rss_bytes", rank.peak_rss_bytes}});
  }
  json["calibration"] = CalibrationJson<nlohmann::ordered_json>(result.calibration);
  json["drift"] = DriftJson<nlohmann::ordered_json>(SumDrift(result.ranks));
  if (result.check.tokens > 0) {
    json["self_check"] = {
        {"tokens", result.check.tokens}, {"kl", result.check.kl}, {"bound", result.check.bound}};
  }
  json["planned_peak_bytes"] = result.planned_peak_bytes;
  json["warnings"] = result.warnings;
  // Text is well-formed UTF-8 already; `replace` keeps a bad warning from ending the program.
  return WriteTextFile(path, json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

void PrintRunSummary(const RunResult& result, bool verbose) {
  std::string tokens;
  for (const RankReport& rank : result.ranks) {
    absl::StrAppend(&tokens, tokens.empty() ? "" : ", ", Grouped(rank.tokens), " (",
                    HumanBytes(rank.kv_bytes), ")");
  }
  std::fprintf(stderr, "tokens   per rank: %s\n", tokens.c_str());
  const double smaller =
      result.kv_bytes > 0 ? static_cast<double>(result.kv_bytes_f16) / result.kv_bytes : 0;
  std::fprintf(stderr, "kv       %s: %s allocated, fp16 would take %s (%.2f times as much)\n",
               result.kv.c_str(), HumanBytes(result.kv_bytes).c_str(),
               HumanBytes(result.kv_bytes_f16).c_str(), smaller);
  const std::string drift = DescribeDrift(SumDrift(result.ranks));
  if (verbose && !drift.empty()) std::fprintf(stderr, "drift    %s\n", drift.c_str());
  std::fprintf(stderr,
               "time     first token after %.2f s; prompt %.0f tokens/s; answer %zu tokens, %.1f "
               "tokens/s (%s)\n",
               result.ttft_s, result.prefill_rate(), result.tokens.size(), result.decode_rate(),
               result.finish_reason.c_str());
  int64_t peak = 0;
  for (const RankReport& rank : result.ranks) peak = std::max(peak, rank.peak_rss_bytes);
  std::fprintf(stderr, "memory   peak of a process %s, planned %s\n", HumanBytes(peak).c_str(),
               HumanBytes(result.planned_peak_bytes).c_str());
}

}  // namespace kvring
