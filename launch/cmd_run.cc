// SPDX-License-Identifier: Apache-2.0
// `kvring run`: read a text, answer a question about it.
#include <CLI/CLI.hpp>
#include <memory>

#include "launch/command.h"
#include "launch/run_session.h"

namespace kvring {

CommandAction AddRunCommand(CLI::App& app, const GlobalOptions& global) {
  auto flags = std::make_shared<RunFlags>();
  RunFlags& f = *flags;
  AddModelFlags(app, f.model);
  AddCalibrationFlag(app, f.model);
  app.add_option("-f,--file,--text", f.prompt.files,
                 "document to read, - for standard input; may be given several times");
  app.add_option("-p,--prompt,--question", f.prompt.question, "what to ask about it");
  app.add_option("--ids", f.prompt.ids_file, "prompt as token ids, separated by white space");
  app.add_flag("--raw", f.prompt.raw, "no chat template: the text as it is");
  app.add_option("-n", f.new_tokens, "new tokens at most")->capture_default_str();
  app.add_option(
      "-c", f.context,
      "context in tokens (default: what the model was trained for, less if memory is short)");
  app.add_flag("--beyond-trained", f.beyond_trained, "allow a context beyond the trained length");
  app.add_option("--kv", f.kv,
                 "codec of the KV cache; tc@auto: tc with the most bits that fit in memory for the "
                 "context (-c, or prompt and answer)")
      ->capture_default_str();
  app.add_option("--memory-limit", f.memory_limit,
                 "memory that the request may take on each rank, as in 512M (default: 90 % of what "
                 "the host has left, shared between its ranks)");
  CLI::Option* ranks = app.add_option("--ranks", f.job.ranks, "ranks that share the sequence")
                           ->capture_default_str();
  app.add_flag("--mpi", f.job.mpi, "ranks are processes: start mpirun with sane settings");
  app.add_option("--temp", f.sampling.temperature, "temperature; 0 is greedy")
      ->capture_default_str();
  app.add_option("--top-k", f.sampling.top_k, "keep the k most likely tokens; 0: all")
      ->capture_default_str();
  app.add_option("--top-p", f.sampling.top_p,
                 "keep the most likely tokens of this much probability")
      ->capture_default_str();
  app.add_option("--seed", f.sampling.seed, "of sampling")->capture_default_str();
  app.add_option("--chunk", f.chunk,
                 "prompt tokens a step (default: so many that a step takes about a second)");
  app.add_option("--logits", f.logits_file,
                 "write the logits of every step, raw f32, one row a step");
  app.add_flag("--ignore-eos", f.ignore_eos, "go on after an end token");
  app.add_option("--attention-scheme", f.scheme, "auto, gather-q (pass-kv is not built yet)")
      ->capture_default_str();
  app.add_option("--determinism", f.determinism, "rank-invariant (fast is the same today)")
      ->capture_default_str();
  app.add_option(
         "--self-check", f.self_check,
         "measure the codec's cost on the prompt's first 512 tokens before reading: on, off, "
         "auto (prompts from 16,384 tokens on)")
      ->capture_default_str();
  app.add_option("--pin", f.pin,
                 "threads of a rank stay on the rank's share of the cores: auto (where there is a "
                 "core for each), none, cores (or it is an error)")
      ->capture_default_str();
  app.add_flag("--small-pages", f.small_pages,
               "no huge pages of the system for a large KV cache (for comparison)");
  return [flags, ranks, &global] {
    flags->ranks_given = ranks->count() > 0;
    return RunCommand(*flags, global);
  };
}

}  // namespace kvring
