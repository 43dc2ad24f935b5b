// The chat template of a model directory: messages to the text that the model was trained on.
#ifndef QUIRE_TEXT_CHAT_TEMPLATE_H_
#define QUIRE_TEXT_CHAT_TEMPLATE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "quire/error.h"
#include "text/jinja/budget.h"
#include "text/jinja/value.h"

namespace quire::model {

struct ChatInput {
  /// An array of {"role", "content", ...} as the API of OpenAI has them. Not nested deeper than
  /// kJsonDepthMax.
  jinja::OrderedJson messages = jinja::OrderedJson::array();
  /// Descriptions of functions; null: none.
  jinja::OrderedJson tools = nullptr;
  bool add_generation_prompt = true;  // ends where the assistant's answer begins
  /// More variables, such as enable_thinking.
  jinja::OrderedJson variables = jinja::OrderedJson::object();
  /// The date by a format of strftime. Without it templates take a fixed date, or none.
  std::function<std::string(const std::string& format)> strftime_now{};
  jinja::Limits limits{};
};

/// Threads: any number at once
class ChatTemplate {
 public:
  /// Reads chat_template.jinja of a directory, else chat_template of its tokenizer_config.json, and
  /// the special tokens' names there. Nothing when the directory has no template.
  ///
  /// Errors: kCorrupt broken JSON, or not a template; kUnsupported a construct outside of
  ///         docs/chat_template.md, named with its line; kNoSpace too large or nested too deep;
  ///         those of reading a file. The message names the file
  static Result<std::optional<ChatTemplate>> Load(const std::string& directory);

  /// Reads the contents of those files; absent ones are nothing.
  static Result<std::optional<ChatTemplate>> Parse(const std::optional<std::string>& jinja,
                                                   const std::optional<std::string>& config,
                                                   const std::string& directory);

  /// The prompt. Special tokens are in it by name, the first one too: encode it without adding any.
  ///
  /// Errors: kInvalidArgument the template refuses the messages; otherwise those of jinja::Render.
  ///         The message names the file and the line
  Result<std::string> Render(const ChatInput& input) const;

 private:
  struct Impl;

  explicit ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<const Impl> impl_;
};

}  // namespace quire::model

#endif  // QUIRE_TEXT_CHAT_TEMPLATE_H_
