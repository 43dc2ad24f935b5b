#include "text/chat_template.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/jinja/text.h"

namespace quire::model {
namespace {

using jinja::OrderedJson;

ChatTemplate Parsed(const std::string& source) {
  auto chat = ChatTemplate::Parse(source, std::nullopt, "dir");
  EXPECT_TRUE(chat.has_value()) << chat.error().message;
  return **std::move(chat);
}

Error ParseError(const std::string& source) {
  const auto chat = ChatTemplate::Parse(source, std::nullopt, "dir");
  EXPECT_FALSE(chat.has_value()) << source;
  return chat ? Error{} : chat.error();
}

Error RenderError(const std::string& source, const jinja::Limits& limits = {}) {
  const auto text = Parsed(source).Render({.limits = limits});
  EXPECT_FALSE(text.has_value()) << *text;
  return text ? Error{} : text.error();
}

std::string Repeated(std::string_view text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(ChatTemplateTest, FileThenConfigThenNothing) {
  const std::string config = R"({"chat_template": "config {{ bos_token }}", "bos_token": "<s>"})";
  const auto text = [](const auto& chat) { return (*chat)->Render({}).value(); };
  EXPECT_EQ(text(ChatTemplate::Parse("file {{ bos_token }}", config, "d")), "file <s>");
  EXPECT_EQ(text(ChatTemplate::Parse(std::nullopt, config, "d")), "config <s>");
  EXPECT_EQ(*ChatTemplate::Parse(std::nullopt, "{}", "d"), std::nullopt);
  EXPECT_EQ(*ChatTemplate::Parse(std::nullopt, std::nullopt, "d"), std::nullopt);
}

TEST(ChatTemplateTest, NamedTemplates) {
  const Json config = {{"chat_template",
                        {{{"name", "default"}, {"template", "plain"}},
                         {{"name", "rag"}, {"template", "{% broken"}},
                         {{"name", "tool_use"}, {"template", "{{ tools | length }} tools"}}}}};
  const auto chat = ChatTemplate::Parse(std::nullopt, config.dump(), "d");
  ASSERT_TRUE(chat.has_value()) << chat.error().message;
  EXPECT_EQ((*chat)->Render({}), "plain");
  EXPECT_EQ((*chat)->Render({.tools = {1, 2}}), "2 tools");
  const auto none = ChatTemplate::Parse(std::nullopt, R"({"chat_template": []})", "d");
  EXPECT_EQ(none.error().code, ErrorCode::kUnsupported);
}

TEST(ChatTemplateTest, ErrorsNameFileAndLine) {
  EXPECT_EQ(ParseError("a\n\n{% include 'x' %}").message,
            "dir/chat_template.jinja: line 3: {% include %}");
  EXPECT_EQ(ParseError("{{ (1 }}").code, ErrorCode::kCorrupt);
  EXPECT_EQ(ParseError("\xff").code, ErrorCode::kCorrupt);
  const Error refused = RenderError("x\n{{ raise_exception('roles must alternate') }}");
  EXPECT_EQ(refused.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.message,
            "dir/chat_template.jinja: line 2: the template refuses: roles must alternate");
  const auto broken = ChatTemplate::Parse(std::nullopt, R"({"chat_template": 5})", "d");
  EXPECT_EQ(broken.error().message,
            "d/tokenizer_config.json: field chat_template: must be a string");
}

TEST(ChatTemplateTest, TheDateIsAnArgument) {
  const ChatTemplate chat = Parsed("{{ strftime_now('%Y') if strftime_now is defined }}");
  EXPECT_EQ(chat.Render({}), "");
  EXPECT_EQ(chat.Render({.strftime_now = [](const std::string& format) { return format + "!"; }}),
            "%Y!");
}

TEST(ChatTemplateTest, InvalidUtf8InMessagesIsReplaced) {
  const ChatTemplate chat = Parsed("{{ messages[0].content | upper }}");
  EXPECT_EQ(chat.Render({.messages = {{{"content", "a\xff"}}}}), "A\xef\xbf\xbd");
}

TEST(ChatTemplateTest, NestingHasALimit) {
  for (const std::string& source :
       {"{{ " + Repeated("(", 5000) + "1" + Repeated(")", 5000),
        "{{ " + Repeated("[", 5000) + Repeated("]", 5000), "{{ " + Repeated("not ", 5000),
        "{{ " + Repeated("- ", 5000), "{{ 1" + Repeated(" if 1 else 1", 5000),
        "{{ x" + Repeated(".a", 5000), "{{ x" + Repeated("|trim", 5000),
        Repeated("{% if 1 %}", 5000), Repeated("{% for x in y %}", 5000)}) {
    EXPECT_EQ(ParseError(source + " }}").code, ErrorCode::kNoSpace) << source.substr(0, 40);
  }
  // A chain is flat.
  EXPECT_EQ(Parsed("{{ 0" + Repeated("+1", 5000) + " }}").Render({}), "5000");
  EXPECT_EQ(Parsed("{{ 1" + Repeated(" and 1", 5000) + " }}").Render({}), "1");
}

TEST(ChatTemplateTest, StepsAndBytesHaveALimit) {
  const auto expect = [](const std::string& source) {
    EXPECT_EQ(RenderError(source, {.steps = 100'000, .bytes = 1 << 20}).code, ErrorCode::kNoSpace)
        << source;
  };
  const std::string loop = "{% for a in range(1000) %}{% for b in range(1000) %}";
  const std::string ends = "{% endfor %}{% endfor %}";
  const std::string often = "{% for i in range(60) %}";
  expect(loop + ends);
  expect(loop + "{% for c in range(1000) %}x{% endfor %}" + ends);
  expect("{% set n = namespace(s='ab') %}" + often + "{% set n.s = n.s ~ n.s %}{% endfor %}");
  expect("{% set n = namespace(s='ab') %}" + often + "{% set n.s = n.s + n.s %}{% endfor %}");
  expect("{% set n = namespace(s=[1]) %}" + often + "{% set n.s = n.s + n.s %}{% endfor %}");
  expect("{% set n = namespace(s=[1]) %}" + often + "{% set n.s = [n.s, n.s] %}{% endfor %}");
  expect("{% set n = namespace(s={}) %}" + often +
         "{% set n.s = dict(a=n.s, b=n.s) %}{% endfor %}");
  expect("{% set n = namespace(s=1) %}{% for i in range(1000) %}{% set n.s = [n.s] %}{% endfor %}");
  expect("{{ 'ab' * 9223372036854775807 }}");
  expect("{{ ('a' * 1000).replace('a', 'b' * 10000) }}");
  expect("{{ ('a\n' * 9000) | indent(250) }}");
  expect("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
  expect("{{ range(1000000000) }}");
}

double ThreadCpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

// Each repeats an operation that takes minutes or hours before a limit is reached, if it is
// implemented in the obvious way and charged by the length of a text or not at all.
TEST(ChatTemplateTest, ChargesEqualTheWorkDone) {
  const std::string often = "{% set r = range(100000) %}{% for i in r %}{% for j in r %}";
  const std::string ends = "{% endfor %}{% endfor %}";
  const std::string texts = "{% set a = 'a' * 200000 %}{% set b = 'a' * 100000 ~ 'b' %}";
  const std::string wide = "{% set w = '\u00e9' * 100000 ~ 'a' %}";
  const auto names = [](const std::string& before, const std::string& behind, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += before + std::to_string(i) + behind;
    return all;
  };
  std::string backwards;
  for (int i = 4095; i >= 0; --i) backwards += "k" + std::to_string(i) + "=1,";
  const std::string map = "{% set m = dict(" + names("k", "=1,", 4096) + ") %}";
  const std::string turned = "{% set t = dict(" + backwards + ") %}";
  const std::string many = names("{%set v", "=1%}", 40'000);
  const std::string space = "{% set n = namespace() %}" + names("{%set n.v", "=1%}", 40'000);
  const std::string macro = "{% macro m(" + names("v", ",", 60'000) + "z) %}{% endmacro %}";
  const std::vector<std::string> templates = {
      texts + often + "{{ b in a }}",
      texts + often + "{{ a.find(b) }}",
      texts + often + "{{ a.count(b) }}",
      texts + often + "{{ a.split(b) | length }}",
      texts + often + "{{ a.replace(b, '') | length }}",
      texts + often + "{{ a | replace(b, '') | length }}",
      texts + wide + often + "{{ a.strip(w) | length }}",
      texts + wide + often + "{{ a | trim(w) | length }}",
      "{% set a = ' ' * 10000000 %}" + often + "{{ a | int }}",
      map + turned + often + "{{ m == t }}",
      map + often + "{% set x = dict(m) %}",
      map + often + "{% set x = m.k4095 %}",
      many + often + "{% set x = absent %}",
      space + often + "{% set x = n.absent %}",
      space + often + "{% set n.v39999 = 1 %}",
      macro + often + "{{ m() }}",
  };
  for (const std::string& source : templates) {
    const double begin = ThreadCpuSeconds();
    const Error error = RenderError(source + ends, {.steps = 1'000'000, .bytes = 1 << 26});
    EXPECT_EQ(error.code, ErrorCode::kNoSpace) << error.message;
    EXPECT_LT(ThreadCpuSeconds() - begin, 15.0) << source.substr(source.find("range"));
  }
}

TEST(ChatTemplateTest, SearchesFindWhatIsThere) {
  const auto text = [](const std::string& expression) {
    return Parsed("{{ " + expression + " }}").Render({}).value();
  };
  // Every text of a and b up to 5 letters in every one up to 7, as a plain search has it.
  const auto letters = [](uint32_t length, uint32_t bits) {
    std::string word;
    for (uint32_t i = 0; i < length; ++i) word += (bits >> i & 1) != 0 ? 'b' : 'a';
    return word;
  };
  for (uint32_t length = 1; length <= 7; ++length) {
    for (uint32_t bits = 0; bits < 1u << length; ++bits) {
      const std::string in = letters(length, bits);
      for (uint32_t needle_length = 1; needle_length <= std::min(length, 5u); ++needle_length) {
        for (uint32_t needle_bits = 0; needle_bits < 1u << needle_length; ++needle_bits) {
          const std::string needle = letters(needle_length, needle_bits);
          const jinja::TextFinder finder(needle);
          for (size_t from = 0; from <= in.size(); ++from) {
            ASSERT_EQ(finder.Find(in, from), in.find(needle, from)) << needle << " in " << in;
          }
        }
      }
    }
  }
  EXPECT_EQ(text("'a\u00e9b\u00e9b'.find('\u00e9b')"), "1");
  EXPECT_EQ(text("'aaaaa'.count('aa')"), "2");
  EXPECT_EQ(text("'aXbXXc'.split('X')"), "['a', 'b', '', 'c']");
  EXPECT_EQ(text("'aXbXXc'.split('X', 1)"), "['a', 'bXXc']");
  EXPECT_EQ(text("'aXbXXc'.split('X', 0)"), "['aXbXXc']");
  EXPECT_EQ(text("' a  b c '.split()"), "['a', 'b', 'c']");
  EXPECT_EQ(text("' a  b c '.split(none, 1)"), "['a', 'b c ']");
  EXPECT_EQ(text("''.split()"), "[]");
  EXPECT_EQ(text("''.split('X')"), "['']");
  EXPECT_EQ(text("['' in 'a', '' in '']"), "[True, True]");
  EXPECT_EQ(text("['xaxbxx'.strip('x'), 'xax'.lstrip('x'), 'xax'.rstrip('xa')]"),
            "['axb', 'ax', '']");
  EXPECT_EQ(text("'\u00e9a\u00e9'.strip('\u00e9')"), "a");
  EXPECT_EQ(text("['a\u00e9bc'[1], 'a\u00e9bc'[-1], 'a\u00e9bc' | first, 'a\u00e9' | last]"),
            "['\u00e9', 'c', 'a', '\u00e9']");
  EXPECT_EQ(text("['a\u00e9bc'[1:3], 'abc'[2:1], 'abc'[:-1], 'abc'[::-1], 'abc'[5:]]"),
            "['\u00e9b', '', 'ab', 'cba', '']");
  EXPECT_EQ(text("'a\u00e9bc' | length"), "4");
}

TEST(ChatTemplateTest, MappingsOfAnySizeFindTheirMembersAndCompare) {
  for (const int count : {1, 8, 9, 500}) {
    std::string up;
    std::string down;
    for (int i = 0; i < count; ++i) {
      up += fmt::format("k{}={},", i, i);
      down += fmt::format("k{}={},", count - 1 - i, count - 1 - i);
    }
    const std::string maps = "{% set a = dict(" + up + ") %}{% set b = dict(" + down + ") %}";
    const auto text = [&](const std::string& expression) {
      return Parsed(maps + "{{ " + expression + " }}").Render({}).value();
    };
    const std::string last = fmt::format("k{}", count - 1);
    EXPECT_EQ(text("a." + last), std::to_string(count - 1));
    EXPECT_EQ(text("b['k0']"), "0");
    EXPECT_EQ(text("[a.k is defined, 'k0' in a, 'k' in a, 'l' in a, '' in a]"),
              "[False, True, False, False, False]");
    EXPECT_EQ(text("a == b"), "True");
    EXPECT_EQ(text("a == dict(b, " + last + "=-1)"), "False");
    EXPECT_EQ(text("a == dict(b, other=1)"), "False");
    EXPECT_EQ(text("[(a | list)[0], (b | list)[0]]"), "['k0', '" + last + "']");  // as written
  }
}

TEST(ChatTemplateTest, ArithmeticStaysWithin64Bits) {
  const std::string most = "9223372036854775807";
  for (const char* expression : {" + 1", " * 2", " - -1"}) {
    EXPECT_EQ(RenderError("{{ " + most + expression + " }}").code, ErrorCode::kUnsupported);
  }
  EXPECT_EQ(RenderError("{{ (-" + most + " - 1) // -1 }}").code, ErrorCode::kUnsupported);
  EXPECT_EQ(Parsed("{{ (-" + most + " - 1) % -1 }}").Render({}), "0");
  EXPECT_EQ(Parsed("{{ [1, 2, 3][" + most + ":] }}{{ [1, 2, 3][::-" + most + "] }}").Render({}),
            "[][3]");
}

TEST(ChatTemplateTest, NamespacesCannotHoldThemselves) {
  for (const char* source :
       {"{% set n = namespace() %}{% set n.n = n %}", "{% set n = namespace() %}{{ [n] }}",
        "{% set n = namespace() %}{% set m = namespace(n=n) %}"}) {
    EXPECT_EQ(RenderError(source).code, ErrorCode::kUnsupported) << source;
  }
}

}  // namespace
}  // namespace quire::model
