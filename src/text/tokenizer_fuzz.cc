// Any bytes are a tokenizer.json or an error; a tokenizer takes any text, and gives text back.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/fuzz_input.h"
#include "text/json_node.h"
#include "text/tokenizer.h"
#include "text/unicode/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  namespace model = quire::model;
  quire::FuzzInput input(data, bytes);
  const auto tokenizer = model::Tokenizer::Parse(input.Next(), "tokenizer.json");
  if (!tokenizer) return 0;
  const auto ids = tokenizer->Encode(input.Next());
  if (!ids) return 0;
  for (const quire::TokenId id : *ids) {
    QUIRE_CHECK(id >= 0 && static_cast<uint64_t>(id) <= model::kTokenIdMax);
  }
  const std::string text = tokenizer->Decode(*ids, {.skip_special = false});
  QUIRE_CHECK(model::ToUtf8(text) == text);
  return 0;
}
