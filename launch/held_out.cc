// SPDX-License-Identifier: Apache-2.0
#include "launch/held_out.h"

#include <algorithm>

#include "launch/progress.h"
#include "runtime/calibrate/calibration_windows.h"
#include "runtime/engine/numerics.h"

namespace kvring {
namespace {

// The ends of what tc has, and closer where the cost is large.
constexpr double kRates[] = {1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0};

// The windows one behind the other, as the evaluator reads them.
std::vector<int32_t> IdsOf(const ReadText& text, const HeldOutWindows& windows) {
  std::vector<int32_t> ids;
  for (const int64_t begin : windows.begins) {
    const auto from = text.ids.begin() + begin;
    ids.insert(ids.end(), from, from + windows.window);
  }
  return ids;
}

std::string NoteOf(const HeldOutWindows& windows, int64_t wanted) {
  if (windows.window == 0) {
    return absl::StrCat("tc: no held-out estimate: the windows leave no stretch of ", kLeastHeldOut,
                        " tokens of the text unread; fewer windows or a longer text would");
  }
  if (windows.window == wanted && windows.begins.size() == kHeldOutWindows) return "";
  return absl::StrCat("tc: the held-out estimate is of ", windows.begins.size(), " x ",
                      Grouped(windows.window), " tokens, which is all that the windows leave");
}

}  // namespace

std::span<const double> HeldOutRates() { return kRates; }

absl::StatusOr<HeldOutResult> MeasureHeldOut(const OpenModel& model,
                                             std::shared_ptr<const CodecTables> tables,
                                             int block_tokens, int threads, const ReadText& text,
                                             const EvalProgress& progress) {
  const int64_t wanted = std::clamp(text.window, kLeastHeldOut, kHeldOutTokens);
  const HeldOutWindows windows =
      ChooseHeldOut(text.text_tokens, text.begins, text.window, wanted, kHeldOutWindows);
  HeldOutResult result;
  result.note = NoteOf(windows, wanted);
  if (windows.window == 0) return result;
  EvalOptions options;
  KVRING_ASSIGN_OR_RETURN(options.weights, Weights::Load(model.file, model.config, {}));
  for (const double rate : kRates) options.codecs.push_back(absl::StrCat("tc@", rate));
  options.tables = std::move(tables);
  options.block_tokens = block_tokens;
  options.rule.cell = block_tokens;  // nothing is read from it, but it must be whole blocks
  options.threads = threads;
  options.numerics = NumericsId(LinearMath::kF32, options.attention);
  options.window = windows.window;
  options.windows = static_cast<int64_t>(windows.begins.size());
  KVRING_ASSIGN_OR_RETURN(const std::vector<EvalRow> rows,
                          Evaluate(options, IdsOf(text, windows), progress));
  HeldOut held_out{options.windows, options.window, {}};
  for (size_t i = 0; i < rows.size(); ++i)
    held_out.points.push_back({kRates[i], rows[i].bits, rows[i].nats_over_f16, rows[i].kl});
  result.held_out = std::move(held_out);
  return result;
}

}  // namespace kvring
