// Answers tests/hf/tokenizer_compare.py and chat_compare.py: one JSON request a line on stdin, one
// JSON answer a line.
//   text_tool TOKENIZER.json
//   {"encode": "text", "special": true}         ->  {"ids": [1, 2]}
//   {"decode": [1, 2], "skip": true}            ->  {"text": "text"}
//   text_tool
//   {"template": "text", "config": {...}, "messages": [...], "tools": null, "variables": {...}}
//                                               ->  {"text": "text"}
// A failure is {"error": "message"}.
#include <iostream>
#include <optional>
#include <string>

#include "base/json.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace {

using quire::Json;
using quire::model::jinja::OrderedJson;

Json Answer(const quire::model::Tokenizer& tokenizer, const Json& request) {
  if (request.contains("encode")) {
    const auto ids = tokenizer.Encode(request["encode"].get<std::string>(),
                                      {.add_special = request["special"].get<bool>()});
    if (!ids) return {{"error", ids.error().message}};
    return {{"ids", *ids}};
  }
  const auto ids = request["decode"].get<std::vector<quire::TokenId>>();
  return {{"text", tokenizer.Decode(ids, {.skip_special = request["skip"].get<bool>()})}};
}

Json Rendered(const OrderedJson& request) {
  const auto chat = quire::model::ChatTemplate::Parse(request["template"].get<std::string>(),
                                                      request["config"].dump(), "dir");
  if (!chat) return {{"error", chat.error().message}};
  const auto text = (*chat)->Render({.messages = request["messages"],
                                     .tools = request["tools"],
                                     .add_generation_prompt = request["prompt"].get<bool>(),
                                     .variables = request["variables"]});
  if (!text) return {{"error", text.error().message}};
  return {{"text", *text}};
}

}  // namespace

int main(int argc, char** argv) {
  std::optional<quire::model::Tokenizer> tokenizer;
  if (argc == 2) {
    auto loaded = quire::model::Tokenizer::Load(argv[1]);
    if (!loaded) {
      std::cerr << loaded.error().message << '\n';
      return 3;
    }
    tokenizer = *std::move(loaded);
  }
  for (std::string line; std::getline(std::cin, line);) {
    const OrderedJson request = OrderedJson::parse(line);
    std::cout << (tokenizer ? Answer(*tokenizer, request) : Rendered(request)).dump() << std::endl;
  }
}
