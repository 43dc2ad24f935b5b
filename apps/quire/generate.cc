// quire generate: continues one prompt.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>

#include "apps/quire/output.h"
#include "apps/quire/runtime.h"
#include "base/hash.h"
#include "base/log.h"
#include "env/file.h"
#include "text/chat_template.h"
#include "text/generation_config.h"

namespace quire::app {

namespace {

constexpr uint64_t kPromptBytesMax = 64 << 20;

struct GenerateFlags {
  RuntimeFlags runtime;
  std::string kv;
  std::string prompt;
  std::string prompt_file;
  std::string prompt_ids;
  uint32_t max_tokens = 64;
  uint64_t seed = 0;
  std::optional<float> temperature;  // absent: greedy, or what the model says for a chat
  bool chat = false;
  serve::KeepOptions keep;
  std::string keep_by;
  uint32_t repeat = 1;
  uint32_t beside = 0;
  std::string on_full = "reject";
  double approximate = 0;
  std::string logits_out;
  bool stats = false;
  bool json = false;
};

Result<std::vector<TokenId>> ParseIds(std::string_view text) {
  std::vector<TokenId> ids;
  while (true) {
    const std::string_view word = text.substr(0, text.find(','));
    TokenId id = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || rest != word.data() + word.size()) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("--prompt-ids: '{}' is not a token id", word));
    }
    ids.push_back(id);
    if (word.size() == text.size()) return ids;
    text.remove_prefix(word.size() + 1);
  }
}

/// The model's template, when --chat asks for it.
Result<std::optional<model::ChatTemplate>> ChatOf(const GenerateFlags& flags) {
  if (!flags.chat) return std::nullopt;
  if (!flags.prompt_ids.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "--chat: takes a prompt of text, not --prompt-ids");
  }
  QUIRE_ASSIGN(auto chat, model::ChatTemplate::Load(flags.runtime.model));
  if (chat) return chat;
  return Fail(ErrorCode::kNotFound,
              fmt::format("{}: no chat template (chat_template.jinja, or chat_template in "
                          "tokenizer_config.json); without --chat the prompt is continued as it is",
                          flags.runtime.model));
}

Result<std::vector<TokenId>> PromptOf(const GenerateFlags& flags, const Runtime& runtime,
                                      const std::optional<model::ChatTemplate>& chat) {
  if (!flags.prompt_ids.empty()) return ParseIds(flags.prompt_ids);
  std::string text = flags.prompt;
  if (!flags.prompt_file.empty()) {
    QUIRE_ASSIGN(text, ReadFile(flags.prompt_file, kPromptBytesMax));
  }
  if (!runtime.tokenizer()) {
    return Fail(ErrorCode::kNotFound,
                fmt::format("{}: no tokenizer.json; give the prompt as --prompt-ids 1,2,3",
                            flags.runtime.model));
  }
  if (!chat) return runtime.tokenizer()->Encode(text);
  QUIRE_ASSIGN(text, chat->Render({.messages = {{{"role", "user"}, {"content", text}}},
                                   .strftime_now = DateNow}));
  return runtime.tokenizer()->Encode(text, {.add_special = false});
}

/// What ends the text: the stop tokens of config.json and of generation_config.json.
std::vector<TokenId> StopTokens(const model::ModelConfig& config,
                                const model::GenerationConfig& generation) {
  std::vector<TokenId> tokens = config.eos;
  tokens.insert(tokens.end(), generation.eos.begin(), generation.eos.end());
  return tokens;
}

model::SamplingOptions SamplingOf(const GenerateFlags& flags,
                                  const model::GenerationConfig& generation) {
  model::SamplingOptions options{.seed = flags.seed};
  if (generation.do_sample) {
    options.top_k = generation.top_k;
    options.top_p = generation.top_p;
    if (flags.chat) options.temperature = generation.temperature;
  }
  options.temperature = flags.temperature.value_or(options.temperature);
  return options;
}

/// The prompt and `beside` others of the same length made of its tokens, it in the middle, so that
/// its prefill and its decoding both run in company.
std::vector<serve::Request> Batch(serve::Request request, uint32_t beside) {
  std::vector<serve::Request> requests;
  for (uint32_t i = 0; i < beside; ++i) {
    serve::Request other{.prompt = request.prompt, .max_tokens = request.max_tokens};
    std::ranges::rotate(other.prompt, other.prompt.begin() + (i + 1) % other.prompt.size());
    requests.push_back(std::move(other));
  }
  requests.insert(requests.begin() + beside / 2, std::move(request));
  return requests;
}

nlohmann::ordered_json ResponseJson(const serve::Response& response, const std::string& text) {
  return {{"prompt_tokens", response.prompt_tokens},
          {"reused_tokens", response.reused_tokens},
          {"loaded_tokens", response.loaded_tokens},
          {"dropped_tokens", response.dropped_tokens},
          {"computed_tokens", response.computed_tokens},
          {"generated_tokens", response.tokens.size()},
          {"text", text},
          {"tokens", response.tokens},
          {"finish", serve::FinishName(response.finish)},
          {"miss_reason", MissReasonName(response.miss_reason)},
          {"ttft_ms", response.ttft_ms},
          {"ms_per_token", response.ms_per_token},
          {"kv_bytes", response.kv_bytes},
          {"streamed_tokens", response.sequence.tokens_streamed},
          {"approximate_tokens", response.sequence.tokens_approximate},
          {"approximate_error", response.sequence.approximate_error},
          {"logits_digest", ToHex(response.logits_digest)}};
}

/// Records that came from a remote, since the start.
uint64_t RemoteHits(Runtime& runtime) {
  if (runtime.store() == nullptr) return 0;
  const auto remote = runtime.store()->stats().remote;
  return remote ? remote->hits : 0;
}

/// `digests`: of every run, in order; `remote_hits`: of the last one.
Result<void> PrintReport(const GenerateFlags& flags, Runtime& runtime, const serve::Response& last,
                         const nlohmann::ordered_json& digests, uint64_t remote_hits) {
  const std::string text =
      runtime.tokenizer() ? runtime.tokenizer()->Decode(last.tokens) : std::string();
  auto report = ResponseJson(last, text);
  const CacheStats stats = runtime.cache().stats();
  report["streamed_requests"] = stats.streamed_requests_total;
  report["streamed_bytes"] = stats.streamed_bytes_total;
  report["remote_tokens"] =
      std::min<uint64_t>(remote_hits * runtime.profile().block_tokens, last.loaded_tokens);
  report["digests"] = digests;
  report["k"] = CodecName(*runtime.profile().CodecFor(StreamRole::kKey));
  report["v"] = CodecName(*runtime.profile().CodecFor(StreamRole::kValue));
  report["codec_fallbacks"] = stats.codec_fallbacks;
  if (flags.stats) {
    QUIRE_ASSIGN(const TenantStats tenant, runtime.cache().tenant_stats(kDefaultTenant));
    report["cache"] = nlohmann::ordered_json::parse(ToJson(stats));
    if (runtime.store() != nullptr) {
      report["store"] = nlohmann::ordered_json::parse(ToJson(runtime.store()->stats()));
    }
    report["tenant"] = nlohmann::ordered_json::parse(ToJson(tenant));
  }
  if (runtime.rank() != nullptr) report["ranks"] = runtime.rank()->Describe();
  PrintJson(report);
  return {};
}

/// The text was printed while it came.
Result<void> PrintSummary(const GenerateFlags& flags, Runtime& runtime,
                          const serve::Response& last) {
  if (!runtime.tokenizer()) fmt::print("{}\n", fmt::join(last.tokens, ","));
  PrintError(fmt::format(
      "{} prompt tokens ({} reused, {} computed), {} generated; first token after {:.1f} "
      "ms, then {:.2f} ms per token; {} of KV; stopped: {}\n",
      last.prompt_tokens, last.reused_tokens, last.computed_tokens, last.tokens.size(),
      last.ttft_ms, last.ms_per_token, FormatBytes(last.kv_bytes), serve::FinishName(last.finish)));
  if (flags.stats) {
    QUIRE_ASSIGN(const TenantStats tenant, runtime.cache().tenant_stats(kDefaultTenant));
    PrintError(fmt::format("{}\n{}", ToText(runtime.cache().stats()), ToText(tenant)));
  }
  return {};
}

/// Errors: kUnsupported names a flag that ranks cannot honour
Result<void> CheckWithRanks(const GenerateFlags& flags) {
  if (flags.keep.keeps_all()) return {};
  return Fail(ErrorCode::kUnsupported,
              "--keep, --keep-blocks: not possible with --ranks; leave one of them out");
}

/// `group`: null: there are no ranks.
Result<int> Generate(const GenerateFlags& flags, ranks::Group* group) {
  if (group != nullptr) QUIRE_TRY(CheckWithRanks(flags));
  QUIRE_ASSIGN(const auto chat, ChatOf(flags));
  QUIRE_ASSIGN(const auto generation, model::GenerationConfig::Load(flags.runtime.model));
  if (!generation.ignored.empty()) {
    LogWarn("{}/generation_config.json: not applied: {}", flags.runtime.model,
            fmt::join(generation.ignored, ", "));
  }
  QUIRE_ASSIGN(const auto runtime,
               Runtime::Load(flags.runtime, EngineOptionsOf(flags.runtime), group));
  if (group != nullptr && !runtime->rank()->leads()) {
    QUIRE_TRY(runtime->rank()->Follow());
    runtime->FlushStore();
    return kOk;
  }
  QUIRE_ASSIGN(auto prompt, PromptOf(flags, *runtime, chat));
  const size_t vocab = runtime->model().config().vocab;

  serve::Request request{.prompt = std::move(prompt),
                         .max_tokens = flags.max_tokens,
                         .stop_tokens = StopTokens(runtime->model().config(), generation),
                         .sampling = SamplingOf(flags, generation),
                         .approximate_error_max = static_cast<float>(flags.approximate),
                         .keep = flags.keep,
                         .adapter = flags.runtime.adapters.empty()
                                        ? std::string()
                                        : AdapterNameOf(flags.runtime.adapters.back()),
                         .all_logits = !flags.logits_out.empty()};
  serve::SetOnFull(flags.on_full, request);  // a name that was checked
  const uint32_t place = flags.beside / 2;   // in the batch
  ProgressBar bar("reading the prompt");
  // Rows of reused positions stand from the run of this process that computed them.
  std::vector<float> logits;
  std::optional<model::TextStream> stream;
  const auto on_event = [&](size_t index, const serve::Event& event) {
    if (index != place) return true;
    if (const auto* progress = std::get_if<serve::Progress>(&event)) {
      bar.Update(progress->done, progress->total);
    } else if (const auto* rows = std::get_if<serve::Logits>(&event)) {
      const uint64_t first = rows->first_position * vocab;
      logits.resize(std::max<size_t>(logits.size(), first + rows->rows.size()));
      std::ranges::copy(rows->rows, logits.begin() + static_cast<int64_t>(first));
    } else if (const auto* token = std::get_if<serve::NewToken>(&event); token && stream) {
      fmt::print("{}", stream->Add(token->token));
      FlushOutput();
    }
    return true;
  };

  serve::Response last;
  uint64_t remote_hits = 0;  // before the last run
  auto digests = nlohmann::ordered_json::array();
  for (uint32_t run = 0; run < flags.repeat; ++run) {
    const bool is_last = run + 1 == flags.repeat;
    remote_hits = RemoteHits(*runtime);
    if (!flags.json && is_last && runtime->tokenizer()) {
      stream.emplace(*runtime->tokenizer());
    }
    auto responses = serve::RunAll(
        runtime->engine(), Batch(is_last ? std::move(request) : request, flags.beside), on_event);
    last = std::move(responses[place]);
    if (last.finish == serve::Finish::kFailed) return std::unexpected(last.error);
    if (stream) fmt::print("{}\n", stream->Finish());
    digests.push_back(ToHex(last.logits_digest));
  }

  if (group != nullptr) QUIRE_TRY(runtime->rank()->Stop());
  runtime->FlushStore();
  if (!flags.logits_out.empty()) {
    QUIRE_TRY(WriteNpy(flags.logits_out, logits, logits.size() / vocab, vocab));
  }
  QUIRE_TRY(flags.json
                ? PrintReport(flags, *runtime, last, digests, RemoteHits(*runtime) - remote_hits)
                : PrintSummary(flags, *runtime, last));
  return last.finish == serve::Finish::kNoSpace ? kResource : kOk;
}

int RunGenerate(GenerateFlags& flags) {
  if (flags.keep.blocks_max > 0) flags.keep.by = serve::KeepBy::kAccumulated;
  if (!flags.keep_by.empty()) flags.keep.by = *serve::KeepByOf(flags.keep_by);  // it was checked
  if (flags.runtime.k.empty()) flags.runtime.k = flags.kv;
  if (flags.runtime.v.empty()) flags.runtime.v = flags.kv;
  return RunWithRanks("generate", flags.runtime.ranks,
                      [&flags](ranks::Group* group) { return Generate(flags, group); });
}

}  // namespace

void AddGenerate(Command& program) {
  auto flags = std::make_shared<GenerateFlags>();
  Command command = program.AddCommand("generate", "Continues a prompt");
  AddRuntimeFlags(command, flags->runtime);
  AddRanksFlags(command, flags->runtime.ranks);
  command.AddOneOf(
      "prompt", "What to continue (exactly one)",
      {{.name = "--prompt", .value = &flags->prompt, .help = "Text"},
       {.name = "--prompt-file", .value = &flags->prompt_file, .help = "A file of text"},
       {.name = "--prompt-ids", .value = &flags->prompt_ids, .help = "Token ids: 1,2,3"}});
  AddAdapterFlag(command, flags->runtime.adapters,
                 "A LoRA adapter to answer with, as PEFT writes it");
  command.Add({.name = "--max-tokens",
               .value = &flags->max_tokens,
               .help = "Most tokens to generate",
               .shows_default = true});
  command.Add({.name = "--chat",
               .value = &flags->chat,
               .help = "The prompt is a message: put it through the model's chat template"});
  command.Add({.name = "--temperature",
               .value = &flags->temperature,
               .help = "0 takes the most likely token (default: 0; with --chat what "
                       "generation_config.json says)",
               .check = TemperatureCheck()});
  command.Add({.name = "--seed",
               .value = &flags->seed,
               .help = "Of the draws, with a temperature",
               .shows_default = true});
  command.Add({.name = "--kv",
               .value = &flags->kv,
               .help = "Codec of K and V (default: the model's type)",
               .check = CodecCheck()});
  for (auto& [name, codec] : {std::pair("--k", &flags->runtime.k), {"--v", &flags->runtime.v}}) {
    command.Add({.name = name,
                 .value = codec,
                 .help = "Codec of one of them",
                 .check = CodecCheck(),
                 .excludes = "--kv"});
  }
  command.Add({.name = "--repeat",
               .value = &flags->repeat,
               .help = "Runs the prompt this often in one process; the last run is reported",
               .check = Between<int>{1, 1000},
               .shows_default = true});
  command.Add({.name = "--beside",
               .value = &flags->beside,
               .help = "Other sequences in the same batch",
               .check = Between<int>{0, 256},
               .shows_default = true});
  AddOnFullFlag(command, flags->on_full);
  command.Add({.name = "--approximate",
               .value = &flags->approximate,
               .help = "With --ladder: the largest relative error of blocks in the lower precision "
                       "that the prompt may begin with; 0: the answer is exact",
               .check = Between<double>{0, 1},
               .shows_default = true,
               .needs = "--ladder"});
  command.Add({.name = "--keep",
               .value = &flags->keep.share,
               .help = "Share of the prompt's blocks to go on with, above 0 to 1; below 1 what "
                       "follows is an approximation",
               .shows_default = true});
  command.Add({.name = "--keep-blocks",
               .value = &flags->keep.blocks_max,
               .help = "Never hold more than so many blocks, 8 or more: where they are full, those "
                       "that got least attention go; an approximation (default: no such bound)"});
  command.Add({.name = "--keep-by",
               .value = &flags->keep_by,
               .help = "observed: what the last prompt tokens attend to (default with --keep); "
                       "accumulated: what all tokens do (default with --keep-blocks); recent: "
                       "sinks and the last blocks",
               .check = OneOf{"observed", "accumulated", "recent"}});
  command.Add({.name = "--logits-out",
               .value = &flags->logits_out,
               .help = "Writes logits [prompt + generated - 1, vocab] as float32 .npy"});
  command.Add({.name = "--stats",
               .value = &flags->stats,
               .help = "Also print what the cache and the tenant count, and what recency would "
                       "hit in a cache of another size"});
  command.Add({.name = "--json", .value = &flags->json, .help = "Print one JSON object"});
  command.Run([flags] { return RunGenerate(*flags); });
}

}  // namespace quire::app
