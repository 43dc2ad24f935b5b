#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex/regex.h"

#include <fmt/core.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "text/unicode/unicode.h"

namespace quire::model {
namespace {

constexpr size_t kPatternBytesMax = 1 << 14;
constexpr uint32_t kNestingMax = 100;
constexpr size_t kCodeBytesMax = 1 << 14;  // compiled; the work of one step grows with it
constexpr uint32_t kHeapKibMax = 1 << 16;
constexpr uint32_t kDepthMax = 1 << 20;
// A match of a released pattern takes some dozens of steps, a run of white space one for each
// character. What takes more than kStepsFree is tried again with more, and charged to the budget of
// the whole text.
constexpr uint64_t kStepsFree = 1 << 12;
constexpr uint64_t kStepsGrowth = 16;
constexpr uint64_t kBudgetBase = 1 << 22;
constexpr uint64_t kBudgetPerByte = 64;
constexpr uint64_t kStepsMax = 1 << 30;  // per match; PCRE2 counts in 32 bits

template <typename T, void (*kFree)(T*)>
struct Deleter {
  void operator()(T* object) const { kFree(object); }
};
template <typename T, void (*kFree)(T*)>
using Owned = std::unique_ptr<T, Deleter<T, kFree>>;

using CompileContext = Owned<pcre2_compile_context, pcre2_compile_context_free>;
using MatchContext = Owned<pcre2_match_context, pcre2_match_context_free>;
using MatchData = Owned<pcre2_match_data, pcre2_match_data_free>;
using Pattern = Owned<pcre2_code, pcre2_code_free>;

std::string Message(int error) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(error, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

RegexBudget::RegexBudget(size_t text_bytes) : left_(kBudgetBase + kBudgetPerByte * text_bytes) {}

uint64_t RegexBudget::Take(uint64_t steps) {
  const uint64_t taken = std::min(steps, left_);
  left_ -= taken;
  return taken;
}

struct Regex::Code {
  std::string where;
  std::string literal;  // what to find when there is no pattern
  Pattern pattern;

  // One text being searched.
  class Search;
};

// Anchored attempts at one place after another, so that the steps of each can be counted.
class Regex::Code::Search {
 public:
  Search(const Code& code, std::string_view text, RegexBudget& budget)
      : code_(code),
        text_(text),
        budget_(budget),
        context_(pcre2_match_context_create(nullptr)),
        data_(pcre2_match_data_create(1, nullptr)) {
    QUIRE_CHECK(context_ != nullptr && data_ != nullptr);
    pcre2_set_heap_limit(context_.get(), kHeapKibMax);
    pcre2_set_depth_limit(context_.get(), kDepthMax);
    pcre2_set_match_limit(context_.get(), kStepsFree);
  }

  // The end of the match that begins at `at`, or npos.
  Result<size_t> At(size_t at) {
    int found = Attempt(at);
    uint64_t steps = kStepsFree;
    while (found == PCRE2_ERROR_MATCHLIMIT && steps < kStepsMax) {
      steps = budget_.Take(std::min(steps * kStepsGrowth, kStepsMax));
      if (steps == 0) break;
      pcre2_set_match_limit(context_.get(), static_cast<uint32_t>(steps));
      found = Attempt(at);
    }
    if (steps != kStepsFree) pcre2_set_match_limit(context_.get(), kStepsFree);
    if (found == PCRE2_ERROR_NOMATCH) return std::string_view::npos;
    if (found < 0) {
      return Fail(ErrorCode::kNoSpace,
                  fmt::format("{}: matching at byte {} of {} is too costly: {}", code_.where, at,
                              text_.size(), Message(found)));
    }
    return pcre2_get_ovector_pointer(data_.get())[1];
  }

 private:
  int Attempt(size_t at) {
    return pcre2_match(code_.pattern.get(), reinterpret_cast<PCRE2_SPTR>(text_.data()),
                       text_.size(), at, PCRE2_NO_UTF_CHECK, data_.get(), context_.get());
  }

  const Code& code_;
  std::string_view text_;
  RegexBudget& budget_;
  MatchContext context_;
  MatchData data_;
};

Result<Regex> Regex::Parse(const JsonNode& pattern) {
  if (const auto literal = pattern.Find("String")) {
    QUIRE_ASSIGN(std::string text, literal->Text());
    if (text.empty()) return literal->Corrupt("must not be empty");
    return Regex(std::make_shared<Code>(Code{.where = {}, .literal = text, .pattern = nullptr}));
  }
  QUIRE_ASSIGN(const JsonNode regex, pattern.Get("Regex"));
  QUIRE_ASSIGN(const std::string text, regex.Text());
  return Compile(text, regex.Name());
}

Result<Regex> Regex::Compile(std::string_view pattern, std::string where) {
  if (pattern.size() > kPatternBytesMax) {
    return Fail(ErrorCode::kUnsupported, fmt::format("{}: a pattern of {} bytes, above {}", where,
                                                     pattern.size(), kPatternBytesMax));
  }
  auto translated = ToPcre2(pattern);
  if (!translated) {
    return Fail(translated.error().code, fmt::format("{}: {}", where, translated.error().message));
  }
  const CompileContext context(pcre2_compile_context_create(nullptr));
  QUIRE_CHECK(context != nullptr);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), kNestingMax);
  // Repeats stay as they are written (no automatic possession) and each place is tried (no start
  // optimisation): then every give-back is a step that counts.
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C |
                                PCRE2_NO_AUTO_POSSESS | PCRE2_NO_START_OPTIMIZE |
                                PCRE2_NO_AUTO_CAPTURE;
  int error = 0;
  size_t offset = 0;
  Pattern code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                             kOptions, &error, &offset, context.get()));
  if (code == nullptr) {
    const bool unknown = error == PCRE2_ERROR_UNKNOWN_UNICODE_PROPERTY ||
                         error == PCRE2_ERROR_PATTERN_TOO_LARGE ||
                         error == PCRE2_ERROR_PARENTHESES_NEST_TOO_DEEP;
    return Fail(unknown ? ErrorCode::kUnsupported : ErrorCode::kCorrupt,
                fmt::format("{}: {} at byte {} of {}", where, Message(error), offset, *translated));
  }
  size_t bytes = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_SIZE, &bytes);
  if (bytes > kCodeBytesMax) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("{}: compiled to {} bytes, above {}", where, bytes, kCodeBytesMax));
  }
  return Regex(std::make_shared<Code>(
      Code{.where = std::move(where), .literal = {}, .pattern = std::move(code)}));
}

Result<void> Regex::FindAll(std::string_view text, RegexBudget& budget, const Sink& sink) const {
  const std::string& literal = code_->literal;
  if (code_->pattern == nullptr) {
    for (size_t at = 0; (at = text.find(literal, at)) != std::string_view::npos;) {
      sink(at, at + literal.size());
      at += literal.size();
    }
    return {};
  }
  Code::Search search(*code_, text, budget);
  size_t last = std::string_view::npos;  // where the last match ended
  for (size_t at = 0; at <= text.size();) {
    QUIRE_ASSIGN(const size_t end, search.At(at));
    if (end != std::string_view::npos && (end > at || at != last)) {
      sink(at, end);
      at = last = end;
    } else if (at < text.size()) {
      NextCharacter(text, at);
    } else {
      break;
    }
  }
  return {};
}

}  // namespace quire::model
