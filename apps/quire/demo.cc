// quire demo: several sessions ask about one shared document; then the promises are checked.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "apps/quire/child.h"
#include "apps/quire/output.h"
#include "apps/quire/retrieval.h"
#include "apps/quire/runtime.h"
#include "base/bits.h"
#include "codec/slot_layout.h"
#include "env/file.h"

namespace quire::app {

namespace {

constexpr size_t kDocumentBytes = 2600;
constexpr uint64_t kProseBytesMax = 16 << 20;

struct DemoFlags {
  RuntimeFlags runtime;
  bool json = false;
};

/// One session: its question, and what came of it each way it was run.
struct Session {
  std::string question{};
  std::vector<TokenId> prompt{};  // the document and the question
  std::string expected{};         // empty: no fact asked for
  uint32_t max_tokens = 0;
  serve::Response shared{};   // after others, with reuse
  serve::Response alone{};    // everything computed
  serve::Response batched{};  // all sessions at once
  std::string answer{};
};

struct Check {
  std::string promise;
  bool kept = false;
};

/// The first question asked by a process of its own.
struct ProcessRun {
  uint64_t prompt_tokens = 0;
  uint64_t loaded_tokens = 0;
  uint64_t computed_tokens = 0;
  double ttft_ms = 0;
  std::string digest{};
};

/// models/tiny in the working directory, in the source tree that the program was built in, or where
/// `make install` puts it.
std::string BundledModel() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path folder = program.parent_path();
  for (const fs::path& root : {fs::path("."), folder / "../..", folder / "../share/quire"}) {
    const fs::path model = root / "models" / "tiny";
    if (fs::exists(model / "config.json", error)) return model.lexically_normal().string();
  }
  return "models/tiny";
}

class Demo {
 public:
  Demo(Runtime& runtime, std::string model, Document document, bool quiet)
      : runtime_(runtime), model_(std::move(model)), document_(std::move(document)), quiet_(quiet) {
    for (const Fact& fact : document_.facts) {
      const std::string answer = fact.Answer();
      sessions_.push_back({.question = fact.Question(),
                           .expected = answer,
                           .max_tokens = static_cast<uint32_t>(answer.size())});
    }
    sessions_.push_back({.question = " In the evening she", .max_tokens = 160});
  }

  Result<int> Run(bool json) {
    const model::Tokenizer& tokenizer = *runtime_.tokenizer();
    QUIRE_ASSIGN(const auto document_tokens, tokenizer.Encode(document_.text));
    for (Session& session : sessions_) {
      QUIRE_ASSIGN(session.prompt, tokenizer.Encode(document_.text + session.question));
    }
    Print("One document of {} tokens, {} sessions. The first reads it, the others find it.\n\n",
          document_tokens.size(), sessions_.size());
    for (Session& session : sessions_) QUIRE_TRY(Ask(session));
    const CacheStats after_sharing = runtime_.cache().stats();
    // Counted before the other runs add blocks of their own.
    CheckReuse();
    CheckBlocks(after_sharing);
    const std::string block_map = runtime_.cache().BlockMap();
    Print("\nThe same questions with nothing reused, then all at once ...\n");
    QUIRE_TRY(AskAlone());
    QUIRE_TRY(AskTogether());
    CheckBits();
    Print("The first question once more, by two processes that share a directory ...\n");
    QUIRE_TRY(AskAcrossARestart());
    CheckRestart();
    CheckEnd();

    if (json) {
      PrintJson(Report(after_sharing));
    } else {
      PrintTable(after_sharing);
      fmt::print("\nBlock map after the sessions (s published, . free)\n{}\n", block_map);
      for (const Check& check : checks_) {
        fmt::print("{} {}\n", check.kept ? "kept  " : "BROKEN", check.promise);
      }
    }
    const bool kept = std::ranges::all_of(checks_, &Check::kept);
    return kept ? kOk : kFailedCheck;
  }

 private:
  template <typename... Args>
  void Print(fmt::format_string<Args...> format, Args&&... args) const {
    if (quiet_) return;
    fmt::print(format, std::forward<Args>(args)...);
    FlushOutput();
  }

  serve::Request RequestOf(const Session& session, bool reuse) const {
    return {.prompt = session.prompt,
            .max_tokens = session.max_tokens,
            // A fact is looked up, a story is told.
            .sampling = {.temperature = session.expected.empty() ? 0.7f : 0.0f, .seed = 1},
            .reuse = reuse};
  }

  Result<serve::Response> RunOne(const serve::Request& request,
                                 const serve::OnEvent& on_event = {}) {
    serve::Response response = std::move(serve::RunAll(runtime_.engine(), {request}, on_event)[0]);
    if (response.finish == serve::Finish::kFailed) return std::unexpected(response.error);
    return response;
  }

  Result<void> Ask(Session& session) {
    model::TextStream stream(*runtime_.tokenizer());
    Print(" {}", session.question);
    const auto print = [this, &stream](size_t, const serve::Event& event) {
      if (const auto* token = std::get_if<serve::NewToken>(&event)) {
        Print("{}", stream.Add(token->token));
      }
      return true;
    };
    QUIRE_ASSIGN(session.shared, RunOne(RequestOf(session, true), print));
    Print("{}\n", stream.Finish());
    session.answer = runtime_.tokenizer()->Decode(session.shared.tokens);
    return {};
  }

  Result<void> AskAlone() {
    for (Session& session : sessions_) {
      QUIRE_ASSIGN(session.alone, RunOne(RequestOf(session, false)));
    }
    return {};
  }

  Result<void> AskTogether() {
    std::vector<serve::Request> requests;
    requests.reserve(sessions_.size());
    for (const Session& session : sessions_) requests.push_back(RequestOf(session, true));
    auto responses = serve::RunAll(runtime_.engine(), std::move(requests));
    for (size_t i = 0; i < sessions_.size(); ++i) {
      if (responses[i].finish == serve::Finish::kFailed) return std::unexpected(responses[i].error);
      sessions_[i].batched = std::move(responses[i]);
    }
    return {};
  }

  /// Each process ends before the next one starts: what the second has can only be from the disk.
  Result<void> AskAcrossARestart() {
    QUIRE_ASSIGN(const TemporaryDirectory directory, TemporaryDirectory::Make());
    const std::string prompt = directory.path() + "/prompt.txt";
    QUIRE_TRY(WriteFile(prompt, document_.text + sessions_[0].question));
    const std::vector<std::string> arguments = {"generate",
                                                "--model",
                                                model_,
                                                "--prompt-file",
                                                prompt,
                                                "--max-tokens",
                                                std::to_string(sessions_[0].max_tokens),
                                                "--store",
                                                directory.path() + "/store",
                                                "--store-bytes",
                                                "256MiB",
                                                "--load",
                                                "always",
                                                "--json"};
    for (ProcessRun& process : processes_) {
      QUIRE_ASSIGN(const auto said, RunChild(arguments));
      process = {.prompt_tokens = said.value("prompt_tokens", uint64_t{0}),
                 .loaded_tokens = said.value("loaded_tokens", uint64_t{0}),
                 .computed_tokens = said.value("computed_tokens", uint64_t{0}),
                 .ttft_ms = said.value("ttft_ms", 0.0),
                 .digest = said.value("logits_digest", std::string())};
    }
    return {};
  }

  void CheckRestart() {
    const auto& [first, second] = processes_;
    const uint64_t whole = (second.prompt_tokens - 1) / kBlockTokensDefault * kBlockTokensDefault;
    checks_.push_back(
        {fmt::format("a second process found all {} whole-block tokens of the first on the disk, "
                     "and gave the same bits",
                     whole),
         first.loaded_tokens == 0 && second.loaded_tokens == whole && !first.digest.empty() &&
             first.digest == second.digest});
  }

  uint32_t block_tokens() const { return runtime_.profile().block_tokens; }

  /// Tokens whose K and V a session stored: the last generated one is never fed back.
  std::vector<TokenId> Stored(const Session& session) const {
    std::vector<TokenId> tokens = RequestOf(session, true).prompt;
    tokens.insert(tokens.end(), session.shared.tokens.begin(), session.shared.tokens.end() - 1);
    return tokens;
  }

  /// Every session reused the longest run of whole blocks that one before it had stored.
  void CheckReuse() {
    bool as_predicted = true;
    for (size_t i = 0; i < sessions_.size(); ++i) {
      const std::vector<TokenId> prompt = RequestOf(sessions_[i], true).prompt;
      uint64_t longest = 0;
      for (size_t earlier = 0; earlier < i; ++earlier) {
        const std::vector<TokenId> stored = Stored(sessions_[earlier]);
        const auto parting = std::ranges::mismatch(prompt, stored).in1;
        longest = std::max<uint64_t>(longest, parting - prompt.begin());
      }
      const uint64_t blocks = std::min<uint64_t>(prompt.size() - 1, longest) / block_tokens();
      as_predicted &= sessions_[i].shared.reused_tokens == blocks * block_tokens();
    }
    checks_.push_back(
        {"each session reused exactly the whole blocks that an earlier one had stored",
         as_predicted});
  }

  /// Whole blocks are stored once; nothing else is held after the sessions.
  void CheckBlocks(const CacheStats& stats) {
    std::set<std::vector<TokenId>> distinct;  // a block is its tokens and all before them
    for (const Session& session : sessions_) {
      std::vector<TokenId> tokens = Stored(session);
      for (size_t end = block_tokens(); end <= tokens.size(); end += block_tokens()) {
        distinct.emplace(tokens.begin(), tokens.begin() + static_cast<int64_t>(end));
      }
    }
    const uint64_t expected = distinct.size();
    checks_.push_back(
        {fmt::format("memory is exact: {} blocks hold what {} sessions share and their tails",
                     stats.sealed.slots_used, sessions_.size()),
         stats.sealed.slots_used == expected && stats.published_blocks == expected});
  }

  void CheckBits() {
    const bool equal = std::ranges::all_of(sessions_, [](const Session& session) {
      return session.shared.logits_digest == session.alone.logits_digest &&
             session.shared.logits_digest == session.batched.logits_digest;
    });
    checks_.push_back(
        {"the same answer, bit for bit: reused, computed alone, and in one batch", equal});
  }

  void CheckEnd() {
    Cache& cache = runtime_.cache();
    const VerifyReport report = cache.Verify();
    checks_.push_back(
        {fmt::format("all {} published blocks still have their checksum", report.blocks),
         report.blocks > 0 && report.damaged == 0});
    checks_.push_back({"the budget was never exceeded",
                       cache.stats().hot_bytes_peak <= cache.stats().hot_bytes_limit});
    cache.Evict(cache.stats().evictable_blocks);
    checks_.push_back({"no byte is left when everything is evicted",
                       cache.stats().hot_bytes_used == 0 && cache.stats().sequences == 0});
  }

  /// Bytes that contiguous f16 caches of the longest sequence would take for all sessions.
  uint64_t ContiguousBytes() const {
    const CacheOptions& options = runtime_.cache().options();
    return sessions_.size() * options.tokens_max * options.geometry.values_per_token() * 2;
  }

  void PrintTable(const CacheStats& stats) const {
    fmt::print("\n{:<34} {:>7} {:>7} {:>9} {:>12} {:>12}  {}\n", "session", "prompt", "reused",
               "computed", "first token", "if computed", "answer");
    for (const Session& session : sessions_) {
      std::string mark = "-";
      if (!session.expected.empty()) mark = session.answer == session.expected ? "right" : "wrong";
      fmt::print("{:<34} {:>7} {:>7} {:>9} {:>9.1f} ms {:>9.1f} ms  {}\n",
                 session.question + " ...", session.shared.prompt_tokens,
                 session.shared.reused_tokens, session.shared.computed_tokens,
                 session.shared.ttft_ms, session.alone.ttft_ms, mark);
    }
    fmt::print("\n{:<34} {:>7} {:>7} {:>9} {:>12}\n", "across a restart", "prompt", "loaded",
               "computed", "first token");
    for (size_t i = 0; i < processes_.size(); ++i) {
      const ProcessRun& process = processes_[i];
      fmt::print("{:<34} {:>7} {:>7} {:>9} {:>9.1f} ms\n",
                 i == 0 ? "process 1 reads the document" : "process 2 finds it in the store",
                 process.prompt_tokens, process.loaded_tokens, process.computed_tokens,
                 process.ttft_ms);
    }
    const uint64_t bytes = stats.sealed.slots_used * stats.sealed.slot_bytes;
    fmt::print(
        "\nKV bytes: {} for all sessions; contiguous f16 at {} tokens each would be {} "
        "({:.1f} x)\n",
        FormatBytes(bytes), runtime_.cache().options().tokens_max, FormatBytes(ContiguousBytes()),
        static_cast<double>(ContiguousBytes()) / static_cast<double>(bytes));
  }

  nlohmann::ordered_json Report(const CacheStats& stats) const {
    auto sessions = nlohmann::ordered_json::array();
    for (const Session& session : sessions_) {
      sessions.push_back({{"question", session.question},
                          {"answer", session.answer},
                          {"expected", session.expected},
                          {"prompt_tokens", session.shared.prompt_tokens},
                          {"reused_tokens", session.shared.reused_tokens},
                          {"computed_tokens", session.shared.computed_tokens},
                          {"ttft_ms", session.shared.ttft_ms},
                          {"ttft_ms_computed", session.alone.ttft_ms}});
    }
    auto processes = nlohmann::ordered_json::array();
    for (const ProcessRun& process : processes_) {
      processes.push_back({{"prompt_tokens", process.prompt_tokens},
                           {"loaded_tokens", process.loaded_tokens},
                           {"computed_tokens", process.computed_tokens},
                           {"ttft_ms", process.ttft_ms},
                           {"logits_digest", process.digest}});
    }
    auto checks = nlohmann::ordered_json::array();
    for (const Check& check : checks_) {
      checks.push_back({{"promise", check.promise}, {"kept", check.kept}});
    }
    return {{"sessions", sessions},
            {"processes", processes},
            {"kv_bytes", stats.sealed.slots_used * stats.sealed.slot_bytes},
            {"kv_bytes_contiguous_f16", ContiguousBytes()},
            {"checks", checks}};
  }

  Runtime& runtime_;
  const std::string model_;
  const Document document_;
  const bool quiet_;
  std::vector<Session> sessions_;
  std::array<ProcessRun, 2> processes_{};
  std::vector<Check> checks_;
};

Result<int> RunDemo(DemoFlags& flags) {
  QUIRE_ASSIGN(const auto runtime, Runtime::Load(flags.runtime));
  if (!runtime->tokenizer()) {
    return Fail(ErrorCode::kNotFound,
                fmt::format("{}: no tokenizer.json; the demo needs one", flags.runtime.model));
  }
  QUIRE_ASSIGN(const std::string prose, ReadFile(BundledModel() + "/heldout.txt", kProseBytesMax));
  QUIRE_ASSIGN(Document document, MakeDocument(prose, kDocumentBytes));
  return Demo(*runtime, flags.runtime.model, std::move(document), flags.json).Run(flags.json);
}

}  // namespace

void AddDemo(Command& program) {
  auto flags = std::make_shared<DemoFlags>();
  flags->runtime.model = BundledModel();
  Command command = program.AddCommand(
      "demo", "Sessions share one document; checks the cache's promises (exit 1 if one breaks)");
  AddRuntimeFlags(command, flags->runtime, ModelFlag::kOptional);
  command.Add({.name = "--json", .value = &flags->json, .help = "Print one JSON object"});
  command.Run([flags] {
    const auto code = RunDemo(*flags);
    return code ? *code : app::Report("demo", code.error());
  });
}

}  // namespace quire::app
