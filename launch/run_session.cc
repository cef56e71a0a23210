// SPDX-License-Identifier: Apache-2.0
#include "launch/run_session.h"

#include <malloc.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "kvstore/codec_spec.h"
#include "kvstore/sequence_shard.h"
#include "launch/answer.h"
#include "launch/auto_rate.h"
#include "launch/calibration_lookup.h"
#include "launch/lengths.h"
#include "launch/mpi_spawn.h"
#include "launch/progress.h"
#include "launch/run_result.h"
#include "launch/self_check.h"
#include "runtime/base/log.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/memory_plan.h"
#include "runtime/model/vocab_reader.h"

namespace kvring {
namespace {

// Shorter sequences say little about drift: a template's control tokens alone are above the bound in some models.
constexpr int64_t kDriftTokens = 512;
constexpr double kMemoryShare = 0.9;  // of what is available: the rest is for what nobody plans

// Everything that is known before weights are loaded. prompt and tokenizer exist on rank 0 alone.
struct Session {
  RunFlags flags;
  OpenModel model;
  VisibilityRule rule;
  LinearMath math = LinearMath::kF32;
  AttentionForm attention;
  Pinning pinning = Pinning::kAuto;
  std::string numerics;
  CalibrationChoice calibration;
  std::string kv;  // flags.kv, with a rate where it leaves the choice
  AutoRate auto_rate;
  std::shared_ptr<const Codec> codec;
  std::unique_ptr<Tokenizer> tokenizer;
  Prompt prompt;
  int64_t new_tokens = 0, chunk = 0, context = 0;
  int64_t memory_limit = 0;  // of a rank; 0: none was given
  int64_t available = 0;     // bytes that the request may take on each rank
  std::shared_ptr<const Weights> weights;
  std::vector<std::string> warnings;
  SelfCheckResult check;

  int64_t total() const { return static_cast<int64_t>(prompt.ids.size()) + new_tokens; }
  bool chooses() const { return IsAutoRate(flags.kv); }
  // Tokens that must fit. A rate is chosen for the whole declared context; a named codec need only hold what is there.
  int64_t needed() const { return chooses() ? std::max(context, total()) : total(); }
};

void Say(const GlobalOptions& global, const std::string& line) {
  if (!global.quiet) std::fprintf(stderr, "%s\n", line.c_str());
}

absl::Status CheckFlags(Session& s, const Job& job) {
  const RunFlags& f = s.flags;
  KVRING_ASSIGN_OR_RETURN(s.attention, ParseAttention(f.model.attention_math, ""));
  KVRING_ASSIGN_OR_RETURN(s.pinning, ParsePinning(f.pin));
  KVRING_ASSIGN_OR_RETURN(s.new_tokens, ParseLength(f.new_tokens));
  if (s.new_tokens < 1) return absl::InvalidArgumentError("-n 0: at least 1 new token is needed");
  if (!f.context.empty()) {
    KVRING_ASSIGN_OR_RETURN(s.context, ParseLength(f.context));
    if (s.context < 2)
      return absl::InvalidArgumentError(
          absl::StrCat("-c ", f.context, ": at least 2 tokens are needed"));
  }
  if (!f.chunk.empty()) {
    KVRING_ASSIGN_OR_RETURN(s.chunk, ParseLength(f.chunk));
    if (s.chunk < 1) return absl::InvalidArgumentError("--chunk 0: at least 1 token is needed");
  }
  if (!f.memory_limit.empty()) {
    KVRING_ASSIGN_OR_RETURN(s.memory_limit, ParseLength(f.memory_limit));
    if (s.memory_limit < 1) return absl::InvalidArgumentError("--memory-limit 0: nothing fits");
  }
  if (f.scheme != "auto" && f.scheme != "gather-q") {
    return absl::UnimplementedError(
        absl::StrCat("--attention-scheme ", f.scheme, " is not built yet: use auto or gather-q"));
  }
  if (f.determinism != "rank-invariant" && f.determinism != "fast") {
    return absl::InvalidArgumentError(
        absl::StrCat("--determinism '", f.determinism, "' is unknown: use rank-invariant or fast"));
  }
  KVRING_RETURN_IF_ERROR(ParseSelfCheck(f.self_check).status());
  KVRING_RETURN_IF_ERROR(CheckSampling(f.sampling));
  KVRING_ASSIGN_OR_RETURN(s.rule, ParseVisibility(f.model));
  if (s.rule.cell < 1 || s.rule.cell % f.model.block_tokens != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--cell ", s.rule.cell, " must be a positive multiple of --block-tokens ",
                     f.model.block_tokens));
  }
  KVRING_RETURN_IF_ERROR(Annotate(
      ShardMap::Create(job.size(), f.model.virtual_shards, f.model.block_tokens, 0).status(),
      "--ranks"));
  return absl::OkStatus();
}

absl::Status MakeSessionCodec(Session& s) {
  std::vector<const RopeTable*> rope;
  for (const RopeTable& table : s.model.config.rope) rope.push_back(&table);
  const int64_t context = s.context > 0 ? s.context : s.model.config.trained_context;
  KVRING_ASSIGN_OR_RETURN(s.codec, MakeCodec(SpecForContext(s.kv, context),
                                             s.model.config.kv_shape(s.flags.model.block_tokens),
                                             rope, s.calibration.tables));
  return absl::OkStatus();
}

absl::Status OpenAll(Session& s) {
  const ModelFlags& flags = s.flags.model;
  KVRING_ASSIGN_OR_RETURN(s.model, OpenModelFile(flags.model));
  s.kv = WithRate(s.flags.kv, kLeastTenths);  // until memory is known
  KVRING_ASSIGN_OR_RETURN(s.calibration, FindCalibration(flags.calibration, {s.kv}, flags.model,
                                                         s.model, flags.block_tokens));
  return MakeSessionCodec(s);
}

// Ranks on several hosts look into files of their own; tables that differ would be read as each other's.
absl::Status SameTables(const Session& s, Job& job, absl::Duration timeout) {
  const int64_t mine = static_cast<int64_t>(s.calibration.hash());
  KVRING_ASSIGN_OR_RETURN(const int64_t leaders, job.FromLeader(mine, timeout));
  if (mine == leaders) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("has other calibration tables for --kv ", s.flags.kv,
                   " than rank 0: give all ranks the same file with --calibration"));
}

absl::Status ReadPrompt(Session& s) {
  KVRING_ASSIGN_OR_RETURN(const VocabData vocab, ReadVocab(*s.model.file));
  KVRING_ASSIGN_OR_RETURN(s.tokenizer, Tokenizer::Create(vocab));
  KVRING_ASSIGN_OR_RETURN(s.prompt, MakePrompt(s.flags.prompt, vocab, *s.tokenizer));
  s.warnings = s.model.config.warnings;
  s.warnings.insert(s.warnings.end(), s.prompt.warnings.begin(), s.prompt.warnings.end());
  return absl::OkStatus();
}

// F24, F19: the trained length is respected and said, and nothing is cut silently.
absl::Status CheckContext(Session& s, const Job& job, const GlobalOptions& global) {
  const ModelConfig& config = s.model.config;
  const int64_t trained = config.trained_context;
  if (trained > 0 && std::max(s.context, s.total()) > trained) {
    const std::string what =
        s.context > trained
            ? absl::StrCat("-c ", s.context)
            : absl::StrCat("the prompt of ", Grouped(s.prompt.ids.size()), " tokens and -n ",
                           s.new_tokens, " (", Grouped(s.total()), " together)");
    if (!s.flags.beyond_trained) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " is beyond the ", Grouped(trained),
                       " tokens that the model was trained for: use a shorter text, or pass "
                       "--beyond-trained and expect worse answers"));
    }
    s.warnings.push_back(
        absl::StrCat(what, " is beyond the trained ", trained, " tokens: answers may be nonsense"));
  }
  if (s.context > 0 && s.total() > s.context) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the prompt of ", Grouped(s.prompt.ids.size()), " tokens and -n ", s.new_tokens, " need ",
        Grouped(s.total()), " tokens, -c allows ", Grouped(s.context)));
  }
  const CalibrationInfo* const tc = TcInfo(s.calibration.used);
  if (tc != nullptr && s.total() > tc->served_context) {
    s.warnings.push_back(absl::StrCat(
        s.flags.kv, ": its tables serve ", Grouped(tc->served_context), " tokens, and ",
        Grouped(s.total()),
        " are read: single phrases may be lost; see `kvring calibrate --served-context`"));
  }
  return absl::OkStatus();
}

ShardMap MapOf(const Session& s, int ranks) {
  return *ShardMap::Create(ranks, s.flags.model.virtual_shards, s.flags.model.block_tokens, 0);
}

// The largest chunk that the engine will cut.
int64_t PlannedChunk(const Session& s, const Job& job) {
  const int64_t unit = int64_t{s.flags.model.block_tokens} * job.size();
  return s.chunk > 0 ? s.chunk : std::max(unit, Engine::kMaxChunk);
}

// What the request may take on a rank of this host, once the weights are in.
int64_t AvailableBytes(const Session& s, const Job& job) {
  const auto share = static_cast<int64_t>(
      kMemoryShare * static_cast<double>(AvailableMemoryBytes()) / job.ranks_on_host());
  return s.memory_limit > 0 ? std::min(s.memory_limit, share) : share;
}

// Of the tokens that must fit and of those that there will be, the larger one: a text whose last cell is full takes less than a
// shorter one with exact rows.
MemoryPlan PlanOf(const Session& s, const Job& job) {
  const ShardMap map = MapOf(s, job.size());
  const auto plan = [&](int64_t tokens) {
    return PlanMemory(s.model.config, *s.codec, map, tokens, PlannedChunk(s, job), s.rule);
  };
  const MemoryPlan declared = plan(s.needed()), own = plan(s.total());
  return own.total() > declared.total() ? own : declared;
}

// Rank 0: the largest rate whose plan fits on the fullest rank, with the codec's own bytes. None: the smallest, and CheckMemory
// will say what is missing.
absl::StatusOr<int> ChooseRate(Session& s, const Job& job) {
  const auto fits = [&](int tenths) -> absl::StatusOr<bool> {
    s.kv = WithRate(s.flags.kv, tenths);
    KVRING_RETURN_IF_ERROR(MakeSessionCodec(s));
    return PlanOf(s, job).total() <= s.available;
  };
  KVRING_ASSIGN_OR_RETURN(const int tenths, LargestRate(fits));
  return std::max(tenths, kLeastTenths);
}

// All ranks take rank 0's choice: its prompt decides, and the poorest rank's memory.
absl::Status SetRate(Session& s, Job& job, absl::Duration timeout) {
  absl::StatusOr<int> chosen = job.leads() ? ChooseRate(s, job) : absl::StatusOr<int>(0);
  KVRING_RETURN_IF_ERROR(job.Agree(chosen.status(), timeout));
  KVRING_ASSIGN_OR_RETURN(const int64_t tenths, job.FromLeader(*chosen, timeout));
  s.kv = WithRate(s.flags.kv, static_cast<int>(tenths));
  KVRING_RETURN_IF_ERROR(job.Agree(MakeSessionCodec(s), timeout));
  AutoRate& rate = s.auto_rate;
  rate.asked = s.flags.kv;
  rate.tenths = static_cast<int>(tenths);
  rate.context = s.needed();
  rate.available_bytes = s.available;
  const KvShape shape = s.model.config.kv_shape(s.flags.model.block_tokens);
  rate.bits = BitsPerElement(*s.codec, shape);
  rate.bytes_per_token = rate.bits / 8 * shape.layers * shape.kv_heads * (shape.dk + shape.dv);
  rate.held_out = TcInfo(s.calibration.used)->held_out;  // a rate is one of tc
  return absl::OkStatus();
}

// The plan against what there is. Returns bytes for the pages of a rank.
absl::StatusOr<int64_t> CheckMemory(Session& s, const Job& job, const GlobalOptions& global) {
  const ModelConfig& config = s.model.config;
  const ShardMap map = MapOf(s, job.size());
  const MemoryPlan plan = PlanOf(s, job);
  const auto largest = [&](int64_t limit) {
    return LargestContext(config, *s.codec, map, PlannedChunk(s, job), s.rule, s.available, limit);
  };
  if (plan.total() > s.available) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "not enough memory: ", Grouped(s.needed()), " tokens with --kv ", s.codec->traits().id,
        " need ", HumanBytes(plan.total()), " on each of ", job.size(), " ranks, ",
        HumanBytes(s.available), " are available (enough for ", Grouped(largest(s.needed())),
        " tokens): use a shorter text, a smaller codec or more hosts"));
  }
  const int64_t trained = config.trained_context;
  if (s.context > 0 || trained == 0 || s.chooses()) {
    return std::max(plan.kv_peak, s.available - plan.buffers);
  }
  if (const int64_t fits = largest(std::max(trained, s.total())); fits < trained) {
    Say(global,
        absl::StrCat("context  ", Grouped(fits),
                     " tokens fit in memory, the model was trained for ", Grouped(trained)));
  }
  return std::max(plan.kv_peak, s.available - plan.buffers);
}

absl::Status LoadWeights(Session& s, const Job& job) {
  s.numerics = NumericsId(s.math, s.attention);
  WeightsOptions options;
  options.math = s.math;
  options.output_head = job.leads();
  KVRING_ASSIGN_OR_RETURN(s.weights, Weights::Load(s.model.file, s.model.config, options));
  malloc_trim(
      0);  // what loading used and gave back is not held: the plan starts from what is in use
  return absl::OkStatus();
}

// Everything before the job starts, on this rank.
absl::Status Prepare(Session& s, const Job& job, const GlobalOptions& global) {
  KVRING_RETURN_IF_ERROR(CheckFlags(s, job));
  KVRING_RETURN_IF_ERROR(OpenAll(s));
  if (!job.leads()) return absl::OkStatus();
  KVRING_ASSIGN_OR_RETURN(s.math, ParseMath(s.flags.model.math, *s.model.file, s.model.config));
  KVRING_RETURN_IF_ERROR(ReadPrompt(s));
  return CheckContext(s, job, global);
}

void PrintHead(const Session& s, const Job& job, const ThreadPlan& plan,
               const GlobalOptions& global) {
  const int threads = plan.threads;
  Say(global, absl::StrCat("model    ", s.flags.model.model, ": ", DescribeModel(s.model.config),
                           ", weights ", HumanBytes(s.weights->bytes()), " (", s.numerics, ")"));
  Say(global, absl::StrCat("ranks    ", job.size(), " ", job.kind(), ", ", threads,
                           threads == 1 ? " thread" : " threads", " each",
                           plan.crowded         ? ", more than there are cores"
                           : plan.cores.empty() ? ""
                                                : ", bound to cores of their own"));
  Say(global, absl::StrCat("prompt   ", Grouped(s.prompt.ids.size()), " tokens (", s.prompt.form,
                           "), then up to ", Grouped(s.new_tokens), " new ones"));
  if (global.verbose) Say(global, absl::StrCat("         ", s.prompt.rule));
  for (const UsedCalibration& used : s.calibration.used) {
    if (global.verbose) Say(global, absl::StrCat("tables   ", DescribeCalibration(used)));
  }
  const ShardMap map = MapOf(s, job.size());
  std::string per_rank;
  for (int slot = 0; slot < job.size(); ++slot) {
    absl::StrAppend(&per_rank, slot == 0 ? "" : ", ",
                    Grouped(map.SlotTokens(slot, s.prompt.ids.size())));
  }
  if (s.chooses()) Say(global, absl::StrCat("codec    ", s.auto_rate.Line()));
  Say(global, absl::StrCat("shards   prompt tokens per rank: ", per_rank));
  for (const std::string& warning : s.warnings) Say(global, absl::StrCat("warning  ", warning));
}

// What the fullest process will reach at its peak: what it holds now, and the plan of the ranks inside it. Loading has a peak
// of its own, which may stay the larger one.
int64_t PlannedPeak(const Session& s, const Job& job, const std::vector<RankReport>& now) {
  const int64_t plan = PlanMemory(s.model.config, *s.codec, MapOf(s, job.size()), s.total(),
                                  PlannedChunk(s, job), s.rule)
                           .total();
  int64_t peak = 0;
  for (const RankReport& rank : now) {
    const int64_t inside = job.processes() ? plan : plan * job.size();
    peak = std::max({peak, rank.rss_bytes + inside, rank.peak_rss_bytes});
  }
  return peak;
}

// F22, before the ranks start: rank 0 alone, with the cores that its own ranks will have.
absl::Status CheckCodec(Session& s, const Job& job, int threads, const GlobalOptions& global) {
  EvalOptions options;
  options.weights = s.weights;
  options.tables = s.calibration.tables;
  options.block_tokens = s.flags.model.block_tokens;
  options.virtual_shards = s.flags.model.virtual_shards;
  options.attention = s.attention;
  options.numerics = s.numerics;
  options.threads = job.processes() ? threads : threads * job.size();
  KVRING_ASSIGN_OR_RETURN(const SelfCheckMode mode, ParseSelfCheck(s.flags.self_check));
  KVRING_ASSIGN_OR_RETURN(s.check, SelfCheck(mode, options, s.kv, s.prompt.ids));
  if (s.check.tokens == 0) return absl::OkStatus();
  Say(global, absl::StrFormat(
                  "check    %s costs %.4f nats a token on the first %d tokens (%.2f would be much)",
                  s.codec->traits().id, s.check.kl, s.check.tokens, s.check.bound));
  if (s.check.warning().empty()) return absl::OkStatus();
  s.warnings.push_back(s.check.warning());
  Say(global, absl::StrCat("warning  ", s.check.warning()));
  return absl::OkStatus();
}

absl::Status LeadGroup(Session& s, const Job& job, RankGroup& group, int64_t pool_bytes,
                       const GlobalOptions& global);

// The group lives until a failure is printed: dropping a failed job ends all its processes.
absl::Status LeadRun(Session& s, Job& job, const ThreadPlan& threads, int64_t pool_bytes,
                     const ExecutorOptions& options, const GlobalOptions& global) {
  const bool processes = job.processes();
  KVRING_ASSIGN_OR_RETURN(const std::unique_ptr<RankGroup> group, job.Lead(threads, options));
  const absl::Status status = LeadGroup(s, job, *group, pool_bytes, global);
  return processes ? SayNow(status) : status;
}

absl::Status LeadGroup(Session& s, const Job& job, RankGroup& group, int64_t pool_bytes,
                       const GlobalOptions& global) {
  EngineOptions engine_options;
  engine_options.weights = s.weights;
  engine_options.codec = s.codec;
  engine_options.rule = s.rule;
  engine_options.block_tokens = s.flags.model.block_tokens;
  engine_options.virtual_shards = s.flags.model.virtual_shards;
  engine_options.numerics = s.numerics;
  engine_options.chunk = s.chunk;
  engine_options.pool_bytes_per_rank = pool_bytes;
  KVRING_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                          Engine::Create(engine_options, &group.leader()));
  KVRING_ASSIGN_OR_RETURN(const std::vector<RankReport> loaded, engine->Reports());
  RunResult result;
  result.planned_peak_bytes = PlannedPeak(s, job, loaded);
  Say(global,
      absl::StrCat("memory   planned peak of a process ", HumanBytes(result.planned_peak_bytes),
                   ", ", HumanBytes(AvailableMemoryBytes()), " available"));
  AnswerOptions answer{&s.prompt.ids,      s.new_tokens,        s.flags.sampling,
                       s.flags.ignore_eos, s.flags.logits_file, global.json != "-",
                       global.quiet,       s.tokenizer.get()};
  KVRING_RETURN_IF_ERROR(Answer(*engine, answer, result));
  result.kv = s.codec->traits().id;
  result.numerics = s.numerics;
  result.calibration = s.calibration.used;
  result.warnings = s.warnings;
  result.check = s.check;
  result.auto_rate = s.auto_rate;
  const int64_t cached = result.prompt_tokens + static_cast<int64_t>(result.tokens.size()) - 1;
  const std::string drift = DriftWarning(SumDrift(result.ranks), result.kv);
  if (!drift.empty() && cached >= kDriftTokens) {
    result.warnings.push_back(drift);
    Say(global, absl::StrCat("warning  ", drift));
  }
  result.kv_bytes_f16 = KvBytesF16(s.model.config.kv_shape(s.flags.model.block_tokens), cached);
  KVRING_RETURN_IF_ERROR(group.Stop());
  if (!global.quiet) PrintRunSummary(result, global.verbose);
  return global.json.empty() ? absl::OkStatus() : WriteRunJson(result, global.json);
}

}  // namespace

absl::Status RunCommand(const RunFlags& flags, const GlobalOptions& global) {
  if (flags.job.mpi && !DetectMpiLaunch().launched) {
    if (flags.job.ranks < 1)
      return absl::InvalidArgumentError(
          absl::StrCat("--ranks ", flags.job.ranks, ": must be at least 1"));
    return SpawnUnderMpirun(flags.job.ranks, ArgumentsForRanks());
  }
  Session s;
  s.flags = flags;
  KVRING_ASSIGN_OR_RETURN(const std::unique_ptr<Job> job, Job::Join(flags.job, flags.ranks_given));
  if (!job->processes()) EndOnInterrupt();
  const absl::Duration loading = absl::Seconds(300);
  KVRING_RETURN_IF_ERROR(job->Agree(Prepare(s, *job, global), loading));
  KVRING_RETURN_IF_ERROR(job->Agree(SameTables(s, *job, loading), loading));
  KVRING_ASSIGN_OR_RETURN(const ThreadPlan threads,
                          job->PlanRanks(global.threads, s.pinning, loading));
  // Which products are fastest is measured once, on rank 0: two ranks could find two answers.
  KVRING_ASSIGN_OR_RETURN(const int64_t math,
                          job->FromLeader(static_cast<int64_t>(s.math), loading));
  s.math = static_cast<LinearMath>(math);
  KVRING_RETURN_IF_ERROR(job->Agree(LoadWeights(s, *job), loading));
  KVRING_ASSIGN_OR_RETURN(s.available, job->Least(AvailableBytes(s, *job), loading));
  if (s.chooses()) KVRING_RETURN_IF_ERROR(SetRate(s, *job, loading));
  absl::StatusOr<int64_t> pool =
      job->leads() ? CheckMemory(s, *job, global) : absl::StatusOr<int64_t>(int64_t{1} << 50);
  KVRING_RETURN_IF_ERROR(job->Agree(pool.status(), loading));
  ExecutorOptions options;
  options.weights = s.weights;
  options.codec = s.codec;
  options.rule = s.rule;
  options.block_tokens = flags.model.block_tokens;
  options.virtual_shards = flags.model.virtual_shards;
  options.pool_bytes = *pool;
  options.huge_pages = !s.flags.small_pages;
  options.timeout = absl::Seconds(flags.model.timeout_s);
  options.attention = s.attention;
  options.numerics = s.numerics;
  if (!job->leads()) {
    const absl::Status followed = job->Follow(threads, options);
    return absl::Status(followed.code(), "");  // rank 0 says why
  }
  PrintHead(s, *job, threads, global);
  // A failure here ends the job as one of LeadRun does: the followers' leader is gone.
  const absl::Status checked = CheckCodec(s, *job, threads.threads, global);
  if (!checked.ok()) return job->processes() ? SayNow(checked) : checked;
  return LeadRun(s, *job, threads, *pool, options, global);
}

}  // namespace kvring
