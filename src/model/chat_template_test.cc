#include "model/chat_template.h"

#include <gtest/gtest.h>

#include <string>

#include "base/json.h"

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
