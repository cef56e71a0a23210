// SPDX-License-Identifier: Apache-2.0
#include "launch/eval_report.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "launch/json_file.h"
#include "launch/result_json.h"

namespace kvring {
namespace {

using Json = nlohmann::ordered_json;

Json HeadJson(const EvalHead& head, const char* task) {
  return {{"model", head.model},
          {"text", head.text},
          {"task", task},
          {"visibility", head.visibility},
          {"numerics", head.numerics},
          {"calibration", CalibrationJson<Json>(head.calibration)}};
}

Json DepthJson(const std::vector<DepthRange>& ranges) {
  Json list = Json::array();
  for (const DepthRange& range : ranges) {
    list.push_back({{"begin", range.begin},
                    {"end", range.end},
                    {"tokens", range.tokens},
                    {"nats", range.nats},
                    {"nats_over_f16", range.nats_over_f16},
                    {"kl", range.kl},
                    {"window_nats", range.window_nats},
                    {"window_kl", range.window_kl}});
  }
  return list;
}

Json RowJson(const EvalRow& r) {
  return {{"kv", r.kv},
          {"bits", r.bits},
          {"bytes_per_token", r.bytes_per_token},
          {"nats", r.nats},
          {"ppl", r.ppl},
          {"nats_over_f16", r.nats_over_f16},
          {"ci95", {r.ci95.first, r.ci95.second}},
          {"kl", r.kl},
          {"top1", r.top1},
          {"seconds", r.seconds},
          {"window_nats", r.window_nats},
          {"window_kl", r.window_kl},
          {"by_depth", DepthJson(r.by_depth)},
          {"saturated", r.saturated},
          {"overflow", r.overflow},
          {"clamped", r.clamped},
          {"drift", DriftJson<Json>(r.drift)}};
}

Json RowJson(const RetrievalRow& r) {
  return {{"kv", r.kv},
          {"bits", r.bits},
          {"log_prob", r.log_prob},
          {"over_f16", r.over_f16},
          {"ci95", {r.ci95.first, r.ci95.second}},
          {"found", r.found},
          {"depth_log_prob", r.depth_log_prob},
          {"depth_over_f16", r.depth_over_f16},
          {"depth_found", r.depth_found},
          {"needle_log_prob", r.needle_log_prob},
          {"seconds", r.seconds},
          {"drift", DriftJson<Json>(r.drift)}};
}

Json TextJson(const NeedleText& text) {
  Json needles = Json::array();
  for (const Needle& needle : text.needles) {
    needles.push_back(
        {{"key", needle.key}, {"phrase", needle.phrase}, {"position", needle.position}});
  }
  return {{"tokens", text.ids.size()}, {"needles", needles}};
}

absl::Status Write(const Json& json, const std::string& path) {
  return WriteTextFile(path, json.dump(2, ' ', false, Json::error_handler_t::replace));
}

// KL and, in brackets, nats over f16, by range of positions.
void PrintDepth(const std::vector<EvalRow>& rows) {
  if (rows.empty() || rows.front().by_depth.empty()) return;
  std::printf("KL (nats over f16) by position\n%-22s", "kv");
  for (const DepthRange& range : rows.front().by_depth)
    std::printf(" %21s", absl::StrCat(range.begin, "-", range.end).c_str());
  for (const EvalRow& row : rows) {
    std::printf("\n%-22s", row.kv.c_str());
    for (const DepthRange& range : row.by_depth)
      std::printf(" %11.5f (%+7.4f)", range.kl, range.nats_over_f16);
  }
  std::printf("\n");
}

template <class Row>
void PrintDrift(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    const std::string drift = DescribeDrift(row.drift);
    if (!drift.empty()) std::printf("drift    %s: %s\n", row.kv.c_str(), drift.c_str());
  }
}

}  // namespace

void PrintEvalTable(const std::vector<EvalRow>& rows) {
  std::printf("%-22s %7s %9s %9s %9s %10s %21s %9s %7s %8s\n", "kv", "bits", "B/token", "nats",
              "ppl", "over f16", "95 % interval", "KL", "top-1", "seconds");
  for (const EvalRow& r : rows) {
    std::printf("%-22s %7.3f %9.1f %9.5f %9.3f %+10.5f [%+9.5f,%+9.5f] %9.5f %6.2f%% %8.1f\n",
                r.kv.c_str(), r.bits, r.bytes_per_token, r.nats, r.ppl, r.nats_over_f16,
                r.ci95.first, r.ci95.second, r.kl, 100 * r.top1, r.seconds);
  }
  PrintDepth(rows);
  PrintDrift(rows);
}

absl::Status WriteEvalJson(const EvalHead& head, const EvalOptions& options,
                           const std::vector<EvalRow>& rows, const std::string& path) {
  Json json = HeadJson(head, "loss");
  json["window"] = options.window;
  json["windows"] = options.windows;
  json["start"] = options.start;
  json["rows"] = Json::array();
  for (const EvalRow& row : rows) json["rows"].push_back(RowJson(row));
  return Write(json, path);
}

void PrintRetrievalTable(const RetrievalResult& result) {
  std::printf("%-22s %7s %10s %10s %21s %7s %8s  %s\n", "kv", "bits", "log-prob", "over f16",
              "95 % interval", "found", "seconds", "over f16 by depth, front to back");
  for (const RetrievalRow& r : result.rows) {
    std::printf("%-22s %7.3f %10.4f %+10.4f [%+9.4f,%+9.4f] %6.1f%% %8.1f ", r.kv.c_str(), r.bits,
                r.log_prob, r.over_f16, r.ci95.first, r.ci95.second, 100 * r.found, r.seconds);
    for (const double depth : r.depth_over_f16) std::printf(" %+.2f", depth);
    std::printf("\n");
  }
  std::printf("%-22s %7s %10.4f %10s %21s %6.1f%%\n", "without the sentences", "",
              result.control_log_prob, "", "", 100 * result.control_found);
  PrintDrift(result.rows);
}

absl::Status WriteRetrievalJson(const EvalHead& head, const NeedleOptions& options,
                                const std::vector<NeedleText>& texts, const RetrievalResult& result,
                                const std::string& path) {
  Json json = HeadJson(head, "retrieval");
  json["length"] = options.length;
  json["depths"] = options.depths;
  json["seed"] = options.seed;
  json["control"] = {{"log_prob", result.control_log_prob}, {"found", result.control_found}};
  json["rows"] = Json::array();
  for (const RetrievalRow& row : result.rows) json["rows"].push_back(RowJson(row));
  json["texts"] = Json::array();
  for (const NeedleText& text : texts) json["texts"].push_back(TextJson(text));
  return Write(json, path);
}

}  // namespace kvring
