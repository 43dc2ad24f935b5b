// Operators, filters and tests of Jinja.
#ifndef QUIRE_TEXT_JINJA_OPERATORS_H_
#define QUIRE_TEXT_JINJA_OPERATORS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "quire/error.h"
#include "text/jinja/budget.h"
#include "text/jinja/value.h"

namespace quire::model::jinja {

/// The arguments in the brackets of a call.
struct Arguments {
  Items values{};
  Members named{};

  /// The argument at `index`, or by `name`; nothing when it is not given.
  const Value* Get(size_t index, std::string_view name) const;
  /// Errors: kInvalidArgument more than `most`, or one with a name
  Result<void> ExpectAtMost(size_t most) const;
};

// Errors of all: kInvalidArgument operands of wrong types, kUnsupported an operation of Python that
// is missing here, kNoSpace the budget.

/// left + right and so on.
Result<Value> Operate(std::string_view name, const Value& left, const Value& right, Budget& budget);
/// left < right, left in right and so on.
Result<bool> Compare(std::string_view name, const Value& left, const Value& right, Budget& budget);
/// object.name and object[index]; undefined when it is not there.
Result<Value> Attribute(const Value& object, std::string_view name, Budget& budget);
Result<Value> Subscript(const Value& object, const Value& index, Budget& budget);
/// object[begin:end:step]; none stands for an absent bound.
Result<Value> Slice(const Value& object, const Value& begin, const Value& end, const Value& step,
                    Budget& budget);
/// object.name(arguments), of a string or mapping.
Result<Value> CallMethod(const Value& object, std::string_view name, const Arguments& arguments,
                         Budget& budget);
/// The items that a loop visits: items, keys or characters; nothing for undefined.
Result<Items> ItemsOf(const Value& value, Budget& budget);
/// str(), charged.
Result<std::string> TextOf(const Value& value, Budget& budget);
/// An argument that is a string; null when it is absent or none.
Result<const std::string*> TextArgument(const Arguments& arguments, size_t index,
                                        std::string_view name);
/// str.strip and its halves of the argument `chars`: "strip", "lstrip", "rstrip".
Result<Value> Strip(std::string_view name, std::string_view text, const Arguments& arguments,
                    Budget& budget);
/// An argument that is a whole number.
Result<int64_t> WholeArgument(const Arguments& arguments, size_t index, std::string_view name,
                              int64_t fallback);

/// subject | name(arguments).
/// Errors: kUnsupported no such filter; those of the operators
Result<Value> ApplyFilter(std::string_view name, const Value& subject, const Arguments& arguments,
                          Budget& budget);

/// subject is name(arguments). Errors: kUnsupported no such test; those of the operators
Result<bool> ApplyTest(std::string_view name, const Value& subject, const Arguments& arguments,
                       Budget& budget);

}  // namespace quire::model::jinja

#endif  // QUIRE_TEXT_JINJA_OPERATORS_H_
