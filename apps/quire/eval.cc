// quire eval: what a codec costs in quality, against f16 on the same text or the same questions.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "apps/quire/output.h"
#include "apps/quire/retrieval.h"
#include "apps/quire/runtime.h"
#include "env/clock.h"
#include "env/file.h"

namespace quire::app {

namespace {

constexpr uint64_t kTextBytesMax = 64 << 20;
/// Tokens per step: as many rows of logits are kept, of two runs.
constexpr uint64_t kStepTokens = 64;

struct EvalFlags {
  RuntimeFlags runtime;
  std::string kv = "f16";
  std::string text;
  uint64_t context = 2048;
  uint64_t cached = 0;     // tokens of a window that are not compared
  uint64_t retrieval = 0;  // facts asked for; 0: perplexity
  uint64_t keep_blocks = 0;
  std::string cases;  // file of documents; empty: the model's
  bool json = false;
};

/// Sums over all predicted tokens.
struct Sums {
  double loss = 0;      // nats, with the codec
  double loss_f16 = 0;  // with f16
  double kld = 0;       // from f16 to the codec
  uint64_t same_top = 0;
  uint64_t tokens = 0;
};

/// Log of the sum of exponentials of one row.
double LogSum(std::span<const float> logits) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  return most + std::log(sum);
}

/// Nothing can be said of a model that computes NaN or infinity.
Result<void> CheckFinite(std::span<const float> logits, const NumericProfile& profile,
                         uint64_t position) {
  if (std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); })) return {};
  return Fail(ErrorCode::kCorrupt,
              fmt::format("the logits after token {} of the text are not finite (K as {}, V as {})"
                          ": the weights hold NaN or infinity, or what is computed from them "
                          "overflows",
                          position, CodecName(*profile.CodecFor(StreamRole::kKey)),
                          CodecName(*profile.CodecFor(StreamRole::kValue))));
}

void Compare(std::span<const float> codec, std::span<const float> f16, TokenId next, Sums& sums) {
  const double log_sum = LogSum(codec);
  const double log_sum_f16 = LogSum(f16);
  sums.loss += log_sum - codec[next];
  sums.loss_f16 += log_sum_f16 - f16[next];
  for (size_t i = 0; i < codec.size(); ++i) {
    const double log_p = f16[i] - log_sum_f16;
    sums.kld += std::exp(log_p) * (log_p - (codec[i] - log_sum));
  }
  sums.same_top +=
      std::ranges::max_element(codec) - codec.begin() == std::ranges::max_element(f16) - f16.begin()
          ? 1
          : 0;
  ++sums.tokens;
}

/// What a precision ladder has of tokens that were computed goes to the store, and is in the lower
/// precision when it comes back.
Result<void> Demote(Runtime& runtime, std::span<const TokenId> tokens) {
  if (runtime.store() == nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                "--ladder: blocks come back from a store in the lower precision; name one with "
                "--store DIR");
  }
  runtime.FlushStore();
  QUIRE_TRY(runtime.cache().Demote({.identity = &runtime.identity(), .tokens = tokens}));
  return {};
}

/// Runs every window of the text on two caches side by side.
class Evaluation {
 public:
  /// The first `cached` tokens of each window are not compared.
  Evaluation(Runtime& runtime, Cache& f16, uint64_t cached)
      : runtime_(runtime), caches_{&runtime.cache(), &f16}, cached_(cached) {}

  /// `first` is the window's first token in the text.
  Result<void> AddWindow(std::span<const TokenId> window, uint64_t first, ProgressBar& bar,
                         uint64_t total) {
    const size_t cached = std::min<size_t>(cached_, window.size() - 2);
    std::unique_ptr<Sequence> sequences[2];
    for (int i = 0; i < 2; ++i) {
      QUIRE_ASSIGN(sequences[i], Begin(*caches_[i], window, cached));
      QUIRE_TRY(Read(*sequences[i], window.first(cached)));
    }
    const size_t vocab = runtime_.model().config().vocab;
    // The last token predicts nothing that is there to compare with.
    for (size_t begin = cached; begin + 1 < window.size(); begin += kStepTokens) {
      const auto tokens = window.subspan(begin, std::min(kStepTokens, window.size() - 1 - begin));
      for (int i = 0; i < 2; ++i) {
        logits_[i].resize(kStepTokens * vocab);
        QUIRE_TRY(Step(*sequences[i], tokens, logits_[i].data()));
      }
      for (size_t t = 0; t < tokens.size(); ++t) {
        for (const int i : {1, 0}) {  // what f16 cannot compute is not the codec's fault
          QUIRE_TRY(CheckFinite(std::span(logits_[i]).subspan(t * vocab, vocab),
                                caches_[i]->options().profile, first + begin + t));
        }
        Compare(std::span(logits_[0]).subspan(t * vocab, vocab),
                std::span(logits_[1]).subspan(t * vocab, vocab), window[begin + t + 1], sums_);
      }
      bar.Update(first + begin, total);
    }
    return {};
  }

  const Sums& sums() const { return sums_; }
  /// Tokens that came back in the lower precision of a ladder, and the largest error of theirs.
  uint64_t approximate_tokens() const { return approximate_tokens_; }
  float approximate_error() const { return approximate_error_; }

 private:
  Result<void> Step(Sequence& sequence, std::span<const TokenId> tokens, float* logits) {
    const model::StepItem item{
        .sequence = &sequence, .tokens = tokens, .logits = logits, .all_logits = logits != nullptr};
    return runtime_.model().Step({&item, 1}, runtime_.attention(), runtime_.executor());
  }

  /// What the sequence lacks of these tokens.
  Result<void> Read(Sequence& sequence, std::span<const TokenId> tokens) {
    while (sequence.length() < tokens.size()) {
      const auto rest = tokens.subspan(sequence.length());
      QUIRE_TRY(Step(sequence, rest.first(std::min(kStepTokens, rest.size())), nullptr));
    }
    return {};
  }

  /// With a precision ladder it begins with `cached` tokens that have been demoted.
  Result<std::unique_ptr<Sequence>> Begin(Cache& cache, std::span<const TokenId> window,
                                          size_t cached) {
    const bool demotes = cached > 0 && cache.options().profile.has_ladder();
    if (demotes) {
      const auto front = window.first(cached);
      QUIRE_ASSIGN(auto plan, cache.Acquire({.identity = &runtime_.identity(), .tokens = front}));
      QUIRE_ASSIGN(auto sequence, cache.Open(std::move(plan), {.step_tokens = kStepTokens}));
      QUIRE_TRY(Read(*sequence, front));
      sequence.reset();
      QUIRE_TRY(Demote(runtime_, front));
    }
    QUIRE_ASSIGN(auto plan, cache.Acquire({.identity = &runtime_.identity(),
                                           .tokens = window.first(cached + 1),
                                           .reuse = demotes,
                                           .approximate_error_max = 1.0f}));
    if (plan.loadable_tokens() > 0) {
      QUIRE_ASSIGN(Ticket ticket, cache.Load(std::move(plan), {}));
      plan = ticket.Take();
    }
    if (demotes) {
      approximate_tokens_ += plan.approximate_tokens();
      approximate_error_ = std::max(approximate_error_, plan.approximate_error());
    }
    return cache.Open(
        std::move(plan),
        {.reserve_tokens = window.size(), .step_tokens = kStepTokens, .publish = false});
  }

  Runtime& runtime_;
  Cache* const caches_[2];  // with the codec, with f16
  const uint64_t cached_;
  std::vector<float> logits_[2];
  Sums sums_;
  uint64_t approximate_tokens_ = 0;
  float approximate_error_ = 0.0f;
};

std::string NameOf(const EvalFlags& flags) {
  return flags.runtime.ladder.empty() ? flags.kv : flags.runtime.ladder;
}

Result<std::string> TextOf(const EvalFlags& flags, const Runtime& runtime) {
  if (!runtime.tokenizer()) {
    return Fail(ErrorCode::kNotFound,
                fmt::format("{}: no tokenizer.json, so no text can be read", flags.runtime.model));
  }
  return ReadFile(flags.text, kTextBytesMax);
}

double BitsPerValue(const CacheOptions& options, uint64_t block_bytes) {
  return static_cast<double>(block_bytes) * 8 /
         (static_cast<double>(options.geometry.values_per_token()) * options.profile.block_tokens);
}

Result<std::unique_ptr<Cache>> MakeF16Cache(const EvalFlags& flags, const Runtime& runtime) {
  RuntimeFlags f16_flags = flags.runtime;
  f16_flags.k = f16_flags.v = CodecName(Codec::kF16);
  f16_flags.residual_tokens = 0;
  f16_flags.ladder.clear();
  QUIRE_ASSIGN(auto options, CacheOptionsOf(f16_flags, runtime.model(), runtime.device()));
  return Cache::Create(std::move(options));
}

Result<nlohmann::ordered_json> EvaluateText(const EvalFlags& flags, Runtime& runtime) {
  QUIRE_ASSIGN(const std::string text, TextOf(flags, runtime));
  QUIRE_ASSIGN(const auto tokens, runtime.tokenizer()->Encode(text));
  if (tokens.size() < 2) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} tokens; there must be 2 at least", flags.text, tokens.size()));
  }
  const uint64_t positions = runtime.model().config().positions_max;
  if (flags.context > positions) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("--context {}: the model was made for at most {} tokens", flags.context,
                            positions));
  }
  QUIRE_ASSIGN(const auto f16, MakeF16Cache(flags, runtime));
  Evaluation evaluation(runtime, *f16, flags.cached);
  ProgressBar bar("comparing with f16");
  for (size_t begin = 0; begin + 1 < tokens.size(); begin += flags.context) {
    const size_t count = std::min<size_t>(flags.context, tokens.size() - begin);
    QUIRE_TRY(
        evaluation.AddWindow(std::span(tokens).subspan(begin, count), begin, bar, tokens.size()));
  }
  bar.Clear();
  const Sums& sums = evaluation.sums();
  const auto count = static_cast<double>(sums.tokens);
  nlohmann::ordered_json report = {{"kv", NameOf(flags)},
                                   {"context", flags.context},
                                   {"cached", flags.cached},
                                   {"tokens", sums.tokens},
                                   {"ppl", std::exp(sums.loss / count)},
                                   {"ppl_f16", std::exp(sums.loss_f16 / count)},
                                   {"ppl_ratio", std::exp((sums.loss - sums.loss_f16) / count)},
                                   {"kld_mean", sums.kld / count},
                                   {"top1_agreement", static_cast<double>(sums.same_top) / count}};
  if (!flags.runtime.ladder.empty()) {
    report["approximate_tokens"] = evaluation.approximate_tokens();
    report["approximate_error"] = evaluation.approximate_error();
  }
  for (const auto& [name, value] : report.items()) {
    if (!value.is_number_float() || std::isfinite(value.get<double>())) continue;
    return Fail(ErrorCode::kCorrupt, fmt::format("{} is not finite: the model finds the text next "
                                                 "to impossible",
                                                 name));
  }
  return report;
}

/// Whether the greedy continuation of the case's prompt begins with its answer.
Result<bool> Finds(serve::Engine& engine, const model::Tokenizer& tokenizer,
                   const std::vector<TokenId>& prompt, const std::string& answer,
                   const serve::KeepOptions& keep) {
  // A token is a byte of text at least.
  const serve::Request request{.prompt = prompt,
                               .max_tokens = static_cast<uint32_t>(answer.size()),
                               .approximate_error_max = 1.0f,
                               .keep = keep};
  const serve::Response response = serve::RunAll(engine, {request}).front();
  if (response.finish == serve::Finish::kFailed) return std::unexpected(response.error);
  return tokenizer.Decode(response.tokens).starts_with(answer);
}

Result<nlohmann::ordered_json> EvaluateRetrieval(const EvalFlags& flags, Runtime& runtime) {
  QUIRE_ASSIGN(const std::string text, TextOf(flags, runtime));
  const std::string file = flags.cases.empty() ? flags.runtime.model + "/cases.jsonl" : flags.cases;
  QUIRE_ASSIGN(const std::string lines, ReadFile(file, kTextBytesMax));
  QUIRE_ASSIGN(const auto documents, ParseRetrieval(lines, file, text.size()));
  uint64_t questions = 0;
  for (const RetrievalDocument& document : documents) questions += document.facts.size();
  if (flags.retrieval > questions) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("--retrieval {}: {} has {} facts", flags.retrieval, file, questions));
  }
  QUIRE_ASSIGN(const auto f16, MakeF16Cache(flags, runtime));
  QUIRE_ASSIGN(const auto f16_engine,
               serve::Engine::Create({.model = runtime.model(),
                                      .cache = *f16,
                                      .attention = runtime.attention(),
                                      .executor = runtime.executor(),
                                      .clock = SystemClock()},
                                     runtime.identity(), EngineOptionsOf(flags.runtime)));
  const serve::KeepOptions keep = {.blocks_max = flags.keep_blocks,
                                   .by = serve::KeepBy::kAccumulated};
  uint64_t counts[2][2] = {};  // [found with f16][found with the codec]
  ProgressBar bar("asking for facts");
  uint64_t asked = 0;
  for (const RetrievalDocument& document : documents) {
    const std::string planted = RetrievalText(document, text);
    // The document is computed for the first question and found in the cache for the others.
    for (const RetrievalDocument::Fact& fact : document.facts) {
      if (asked == flags.retrieval) break;
      QUIRE_ASSIGN(const auto prompt, runtime.tokenizer()->Encode(planted + fact.Question()));
      if (!flags.runtime.ladder.empty()) {
        serve::RunAll(runtime.engine(), {{.prompt = prompt, .max_tokens = 0}});
        QUIRE_TRY(Demote(runtime, prompt));
      }
      QUIRE_ASSIGN(const bool found,
                   Finds(runtime.engine(), *runtime.tokenizer(), prompt, fact.Answer(), keep));
      QUIRE_ASSIGN(const bool found_f16,
                   Finds(*f16_engine, *runtime.tokenizer(), prompt, fact.Answer(), {}));
      ++counts[found_f16][found];
      bar.Update(++asked, flags.retrieval);
    }
  }
  const auto share = [&](uint64_t right) {
    return static_cast<double>(right) / static_cast<double>(flags.retrieval);
  };
  return nlohmann::ordered_json{{"kv", NameOf(flags)},
                                {"keep_blocks", flags.keep_blocks},
                                {"cases", flags.retrieval},
                                {"accuracy", share(counts[1][1] + counts[0][1])},
                                {"accuracy_f16", share(counts[1][1] + counts[1][0])},
                                {"lost", counts[1][0]},
                                {"gained", counts[0][1]}};
}

Result<nlohmann::ordered_json> Evaluate(const EvalFlags& flags) {
  QUIRE_ASSIGN(const auto runtime, Runtime::Load(flags.runtime));
  QUIRE_ASSIGN(auto report, flags.retrieval != 0 ? EvaluateRetrieval(flags, *runtime)
                                                 : EvaluateText(flags, *runtime));
  const Cache& cache = runtime->cache();
  report["codec_fallbacks"] = cache.stats().codec_fallbacks;
  report["bits_per_value"] = BitsPerValue(cache.options(), cache.block_bytes());
  return report;
}

int RunEval(EvalFlags flags) {
  if (!flags.runtime.ladder.empty()) {
    if (flags.kv != EvalFlags().kv) {
      return Report("eval",
                    {ErrorCode::kInvalidArgument, "--ladder names its codecs; leave --kv out"});
    }
    if (flags.cached == 0 && flags.retrieval == 0) {
      return Report("eval", {ErrorCode::kInvalidArgument,
                             "--ladder: say with --cached N how much of each window comes back in "
                             "the lower precision, or ask for facts with --retrieval N"});
    }
    flags.runtime.load = "always";
  } else {
    if (flags.runtime.k.empty()) flags.runtime.k = flags.kv;
    if (flags.runtime.v.empty()) flags.runtime.v = flags.kv;
  }
  const auto result = Evaluate(flags);
  if (!result) return Report("eval", result.error());
  PrintObject(*result, flags.json);
  return kOk;
}

}  // namespace

void AddEval(Command& program) {
  auto flags = std::make_shared<EvalFlags>();
  Command command = program.AddCommand(
      "eval",
      "Quality of a codec against f16 on a text: perplexity, KL divergence, top-1 agreement, or "
      "facts found far back");
  AddRuntimeFlags(command, flags->runtime);
  command.Add({.name = "--text", .value = &flags->text, .help = "Text file", .required = true});
  command.Add({.name = "--kv",
               .value = &flags->kv,
               .help = "Codec of K and V",
               .check = CodecCheck(),
               .shows_default = true});
  command.Add(
      {.name = "--k", .value = &flags->runtime.k, .help = "Codec of K", .check = CodecCheck()});
  command.Add(
      {.name = "--v", .value = &flags->runtime.v, .help = "Codec of V", .check = CodecCheck()});
  command.Add({.name = "--context",
               .value = &flags->context,
               .help = "Tokens per window",
               .check = Between<uint64_t>{2, uint64_t{1} << 32},
               .shows_default = true});
  command.Add({.name = "--cached",
               .value = &flags->cached,
               .help = "Tokens of each window that are read and not compared; with --ladder they "
                       "come back in the lower precision, from --store"});
  command.Add({.name = "--retrieval",
               .value = &flags->retrieval,
               .help = "Ask for facts planted in the text instead: this many",
               .check = Between<uint64_t>{1, uint64_t{1} << 32}});
  command.Add({.name = "--keep-blocks",
               .value = &flags->keep_blocks,
               .help = "Hold no more than so many blocks (quire generate --help); f16 holds all",
               .needs = "--retrieval"});
  command.Add(
      {.name = "--cases",
       .value = &flags->cases,
       .help = "File of documents (default: MODEL/cases.jsonl), as models/tiny/README.md says",
       .needs = "--retrieval"});
  command.Add({.name = "--json", .value = &flags->json, .help = "Print one JSON object"});
  command.Run([flags] { return RunEval(*flags); });
}

}  // namespace quire::app
