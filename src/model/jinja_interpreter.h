// Runs a parsed Jinja template.
#ifndef QUIRE_MODEL_JINJA_INTERPRETER_H_
#define QUIRE_MODEL_JINJA_INTERPRETER_H_

#include <functional>
#include <string>
#include <string_view>

#include "model/jinja_ast.h"
#include "model/jinja_budget.h"
#include "model/jinja_value.h"
#include "quire/error.h"

namespace quire::model::jinja {

struct RenderInput {
  Members variables{};
  /// The date by a format of strftime; empty: the template finds strftime_now undefined.
  std::function<std::string(const std::string& format)> strftime_now{};
  Limits limits{};
};

/// The template's output.
///
/// Errors:  kInvalidArgument raise_exception, or values an operator cannot take; kUnsupported a
///          filter, test, function or method outside of docs/chat_template.md; kNoSpace a limit.
///          The message names the line
/// Threads: any number at once on one template
Result<std::string> Render(const Block& block, const RenderInput& input);

}  // namespace quire::model::jinja

#endif  // QUIRE_MODEL_JINJA_INTERPRETER_H_
