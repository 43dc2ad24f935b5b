// Runs a parsed Jinja template.
#ifndef QUIRE_TEXT_JINJA_INTERPRETER_H_
#define QUIRE_TEXT_JINJA_INTERPRETER_H_

#include <functional>
#include <string>
#include <string_view>

#include "quire/error.h"
#include "text/jinja/ast.h"
#include "text/jinja/budget.h"
#include "text/jinja/value.h"

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

#endif  // QUIRE_TEXT_JINJA_INTERPRETER_H_
