// Filters and tests of Jinja.
#ifndef QUIRE_TEXT_JINJA_FILTERS_H_
#define QUIRE_TEXT_JINJA_FILTERS_H_

#include <string_view>

#include "quire/error.h"
#include "text/jinja_budget.h"
#include "text/jinja_operators.h"
#include "text/jinja_value.h"

namespace quire::model::jinja {

/// subject | name(arguments).
/// Errors: kUnsupported no such filter; those of the operators
Result<Value> ApplyFilter(std::string_view name, const Value& subject, const Arguments& arguments,
                          Budget& budget);

/// subject is name(arguments). Errors: kUnsupported no such test; those of the operators
Result<bool> ApplyTest(std::string_view name, const Value& subject, const Arguments& arguments,
                       Budget& budget);

}  // namespace quire::model::jinja

#endif  // QUIRE_TEXT_JINJA_FILTERS_H_
