// Answers tests/hf/text_compare.py: one JSON request a line on stdin, one JSON answer a line.
//   text_tool TOKENIZER.json
//   {"encode": "text", "special": true}   ->  {"ids": [1, 2]}      or {"error": "..."}
//   {"decode": [1, 2], "skip": true}      ->  {"text": "text"}
#include <iostream>
#include <string>

#include "base/json.h"
#include "model/tokenizer.h"

namespace {

using quire::Json;

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

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto tokenizer = quire::model::Tokenizer::Load(argv[1]);
  if (!tokenizer) {
    std::cerr << tokenizer.error().message << '\n';
    return 3;
  }
  for (std::string line; std::getline(std::cin, line);) {
    const auto request = quire::ParseJson(line, "stdin");
    if (!request) return 2;
    std::cout << Answer(*tokenizer, *request).dump() << std::endl;
  }
}
