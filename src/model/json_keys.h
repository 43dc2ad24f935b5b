// Names in JSON texts that must be there once.
#ifndef QUIRE_MODEL_JSON_KEYS_H_
#define QUIRE_MODEL_JSON_KEYS_H_

#include <optional>
#include <string>
#include <string_view>

namespace quire::model {

/// A name that some object of the text has twice: one value to a JSON parser, but an attack or a
/// damaged file to us. The text must have been parsed before.
std::optional<std::string> FirstDuplicateKey(std::string_view text);

}  // namespace quire::model

#endif  // QUIRE_MODEL_JSON_KEYS_H_
