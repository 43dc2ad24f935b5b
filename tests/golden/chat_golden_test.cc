// Chats as jinja2 rendered them, set up as transformers does it.
#include <gtest/gtest.h>

#include <string>

#include "env/file.h"
#include "text/chat_template.h"

namespace quire::model {
namespace {

using jinja::OrderedJson;

std::string Read(const std::string& name) {
  const auto text = ReadFile(QUIRE_SOURCE_DIR "/tests/golden/chat/" + name, 1 << 20);
  if (!text) ADD_FAILURE() << text.error().message;
  return text.value_or("null");
}

Result<std::string> Rendered(const OrderedJson& golden, const OrderedJson& one) {
  const std::string source = one.contains("file") ? Read(one["file"]) : std::string(one["source"]);
  const OrderedJson options = golden["options"].at(one.value("options", 0));
  QUIRE_ASSIGN(const auto chat, ChatTemplate::Parse(source, golden["config"].dump(), "dir"));
  return chat->Render({.messages = golden["conversations"].at(one.value("messages", "snippet")),
                       .tools = options.value("tools", OrderedJson()),
                       .add_generation_prompt = options.value("prompt", true),
                       .variables = options.value("variables", OrderedJson::object())});
}

TEST(ChatGoldenTest, SameTexts) {
  const OrderedJson golden = OrderedJson::parse(Read("golden.json"));
  ASSERT_GT(golden["cases"].size(), 100u);
  for (const OrderedJson& one : golden["cases"]) {
    SCOPED_TRACE(one.dump());
    const auto text = Rendered(golden, one);
    if (one["text"].is_null()) {
      EXPECT_FALSE(text.has_value()) << *text;
    } else {
      ASSERT_TRUE(text.has_value()) << text.error().message;
      EXPECT_EQ(*text, one["text"].get<std::string>());
    }
  }
}

// What Jinja could do and this does not is said, with the line.
TEST(ChatGoldenTest, RefusalsNameTheLine) {
  const OrderedJson golden = OrderedJson::parse(Read("golden.json"));
  for (const OrderedJson& source : golden["refused"]) {
    const auto text = Rendered(golden, {{"source", "\n" + source.get<std::string>()}});
    ASSERT_FALSE(text.has_value()) << source;
    EXPECT_TRUE(text.error().message.contains("chat_template.jinja: line 2: "))
        << text.error().message;
  }
}

}  // namespace
}  // namespace quire::model
