// Any template and any messages are a text or an error, within the limits.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/fuzz_input.h"
#include "base/json.h"
#include "text/chat_template.h"
#include "text/unicode/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  namespace model = quire::model;
  using model::jinja::OrderedJson;
  constexpr uint64_t kBytesMax = 1 << 22;
  quire::FuzzInput input(data, bytes);
  const std::string source(input.Next());
  const std::string config(input.Next());
  const auto chat = model::ChatTemplate::Parse(source, config, "dir");
  if (!chat) return 0;
  const std::string_view text = input.Next();
  model::ChatInput chat_input{
      .tools = OrderedJson::array(),
      .strftime_now = [](const std::string& format) { return format; },
      .limits = {.steps = 200'000, .bytes = kBytesMax},
  };
  if (const auto checked = quire::ParseJson(text, "messages")) {
    chat_input.messages = OrderedJson::parse(text);
  }
  if (const auto rendered = (*chat)->Render(chat_input)) {
    QUIRE_CHECK(rendered->size() <= kBytesMax && model::ToUtf8(*rendered) == *rendered);
  }
  return 0;
}
