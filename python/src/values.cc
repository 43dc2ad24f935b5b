#include "values.h"

#include <nanobind/stl/string.h>

#include <limits>
#include <utility>

namespace quire::python {

namespace {

template <typename Number>
std::vector<TokenId> ReadTokens(const AnyArray& array) {
  std::vector<TokenId> tokens(array.shape(0));
  const auto* from = static_cast<const Number*>(array.data());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Number token = from[static_cast<int64_t>(i) * array.stride(0)];
    if (!std::in_range<TokenId>(token)) {
      Raise(ErrorCode::kInvalidArgument, "token " + std::to_string(i) + " is " +
                                             std::to_string(token) + ", which no int32 holds");
    }
    tokens[i] = static_cast<TokenId>(token);
  }
  return tokens;
}

std::vector<TokenId> ListOfTokens(nb::handle list) {
  std::vector<TokenId> tokens;
  for (const nb::handle item : list) {
    int64_t token = 0;
    if (!nb::try_cast(item, token)) {
      Raise(ErrorCode::kInvalidArgument,
            "token " + std::to_string(tokens.size()) + " is no integer of 64 bits");
    }
    if (!std::in_range<TokenId>(token)) {
      Raise(ErrorCode::kInvalidArgument, "token " + std::to_string(tokens.size()) + " is " +
                                             std::to_string(token) + ", which no int32 holds");
    }
    tokens.push_back(static_cast<TokenId>(token));
  }
  return tokens;
}

}  // namespace

std::vector<TokenId> ToTokens(nb::handle tokens) {
  AnyArray array;
  if (!nb::try_cast(tokens, array, false)) return ListOfTokens(tokens);
  if (array.ndim() != 1) {
    Raise(ErrorCode::kInvalidArgument,
          "tokens have " + std::to_string(array.ndim()) + " axes, not 1");
  }
  if (array.dtype() == nb::dtype<int32_t>()) return ReadTokens<int32_t>(array);
  if (array.dtype() == nb::dtype<int64_t>()) return ReadTokens<int64_t>(array);
  Raise(ErrorCode::kInvalidArgument, "tokens are neither int32 nor int64");
}

uint64_t ToMicros(std::optional<double> seconds) {
  if (!seconds) return 0;
  const double micros = *seconds * 1e6;
  if (!(micros >= 1 && micros < 1e18)) {
    Raise(ErrorCode::kInvalidArgument, std::to_string(*seconds) + " seconds");
  }
  return static_cast<uint64_t>(micros);
}

nb::object FromJson(const std::string& text) {
  return nb::module_::import_("json").attr("loads")(text);
}

}  // namespace quire::python
