// SPDX-License-Identifier: Apache-2.0
// Parts of results that several subcommands write alike. Json: nlohmann::ordered_json, which only sources include.
#pragma once

#include <vector>

#include "launch/calibration_lookup.h"
#include "runtime/engine/rank_report.h"

namespace kvring {

// [{file, model, texts, codecs}], in the order in which the files were looked at.
template <class Json>
Json CalibrationJson(const std::vector<UsedCalibration>& used) {
  Json list = Json::array();
  for (const UsedCalibration& c : used) {
    list.push_back({{"file", c.file},
                    {"model", c.info.model_name},
                    {"texts", c.info.texts},
                    {"codecs", c.codecs}});
  }
  return list;
}

// "update" and "held_out" of an artifact that has them.
template <class Json>
void AddOptionalInfo(const CalibrationInfo& info, Json& json) {
  if (info.update) {
    const CalibrationUpdate& u = *info.update;
    json["update"] = {{"texts", u.texts},     {"text_hash", u.text_hash}, {"from", u.from},
                      {"windows", u.windows}, {"window", u.window},       {"seed", u.seed}};
  }
  if (info.held_out) {
    Json points = Json::array();
    for (const HeldOutPoint& p : info.held_out->points)
      points.push_back({{"rate", p.rate}, {"bits", p.bits}, {"nats", p.nats}, {"kl", p.kl}});
    json["held_out"] = {
        {"windows", info.held_out->windows}, {"window", info.held_out->window}, {"points", points}};
  }
}

// [{layer, saturated, overflow, saturated_share, overflow_share}] of the layers where something saturated.
template <class Json>
Json DriftJson(const std::vector<LayerDrift>& layers) {
  Json list = Json::array();
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].saturated == 0) continue;
    list.push_back({{"layer", i},
                    {"saturated", layers[i].saturated},
                    {"overflow", layers[i].overflow},
                    {"saturated_share", layers[i].saturated_share()},
                    {"overflow_share", layers[i].overflow_share()}});
  }
  return list;
}

}  // namespace kvring
