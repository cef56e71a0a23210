// SPDX-License-Identifier: Apache-2.0
#include "launch/answer.h"

#include <cstdio>
#include <memory>

#include "launch/progress.h"
#include "runtime/base/clock.h"
#include "runtime/base/hash.h"
#include "runtime/text/stream_decoder.h"

namespace kvring {
namespace {

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

absl::StatusOr<File> OpenLogits(const std::string& path) {
  if (path.empty()) return File();
  File file(std::fopen(path.c_str(), "wb"));
  if (!file) return absl::InvalidArgumentError(absl::StrCat("cannot write the logits to ", path));
  return file;
}

void Print(const AnswerOptions& options, const std::string& text) {
  if (!options.stream) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

absl::Status Answer(Engine& engine, const AnswerOptions& options, RunResult& result) {
  KVRING_ASSIGN_OR_RETURN(const File logits, OpenLogits(options.logits_file));
  StreamDecoder decoder(options.tokenizer);
  result.prompt_tokens = static_cast<int64_t>(options.prompt->size());
  Progress progress("reading", "tokens", result.prompt_tokens, options.quiet);
  Stopwatch watch;
  double first_at = 0, last_at = 0;
  bool written = true;
  absl::Status ended;

  EngineRequest request;
  request.prompt = *options.prompt;
  request.max_new_tokens = options.new_tokens;
  request.sampling = options.sampling;
  request.rho = 0;  // one request: the layout that was printed
  if (!options.ignore_eos) request.stop = options.tokenizer->EndOfGeneration();
  request.on_prefill = [&](int64_t done, int64_t) { progress.Update(done); };
  request.on_token = [&](const TokenEvent& event) {
    last_at = watch.Seconds();
    if (event.index == 0) {
      first_at = last_at;
      progress.Finish();
    }
    result.tokens.push_back(event.token);
    result.logits_hash.push_back(HashHex(Hash64(event.logits.data(), event.logits.size_bytes())));
    if (logits)
      written &= std::fwrite(event.logits.data(), 1, event.logits.size_bytes(), logits.get()) ==
                 event.logits.size_bytes();
    const std::string text = decoder.Push(event.token);
    result.text += text;
    Print(options, text);
    return written;
  };
  request.on_done = [&](SequenceId, const absl::Status& status, const std::string& reason) {
    ended = status;
    result.finish_reason = reason;
  };
  KVRING_RETURN_IF_ERROR(engine.Submit(std::move(request)).status());
  KVRING_RETURN_IF_ERROR(engine.RunUntilIdle());
  if (!written)
    return absl::DataLossError(absl::StrCat("cannot write all logits to ", options.logits_file));
  KVRING_RETURN_IF_ERROR(ended);
  const std::string rest = decoder.Finish();
  result.text += rest;
  Print(options, rest + "\n");
  result.ttft_s = result.prefill_seconds = first_at;
  result.decode_seconds = last_at - first_at;
  // The finished sequence is closed by the next plan with work; until then every rank still holds it.
  KVRING_ASSIGN_OR_RETURN(result.ranks, engine.Reports());
  result.kv_bytes = 0;
  for (const RankReport& rank : result.ranks) result.kv_bytes += rank.kv_bytes;
  return absl::OkStatus();
}

}  // namespace kvring
