#include "text/chat_template.h"

#include <fmt/core.h>

#include <array>
#include <utility>
#include <vector>

#include "base/json.h"
#include "env/file.h"
#include "text/jinja/template.h"
#include "text/json_node.h"
#include "text/unicode/unicode.h"

namespace quire::model {
namespace {

constexpr uint64_t kConfigBytesMax = 1 << 26;
constexpr uint64_t kTemplateBytesMax = 1 << 20;
constexpr const char* kTemplateFile = "chat_template.jinja";
constexpr const char* kConfigFile = "tokenizer_config.json";
constexpr std::array<const char*, 7> kSpecialTokens = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

std::unexpected<Error> In(std::string_view name, const Error& error) {
  return Fail(error.code, fmt::format("{}: {}", name, error.message));
}

Result<std::optional<std::string>> ReadIfThere(const std::string& path, uint64_t bytes_max) {
  Result<std::string> text = ReadFile(path, bytes_max);
  if (text) return std::optional(*std::move(text));
  if (text.error().code == ErrorCode::kNotFound) return std::nullopt;
  return std::unexpected(text.error());
}

Result<jinja::Block> ParseBlock(std::string_view source, std::string_view name) {
  if (source.size() > kTemplateBytesMax) {
    return Fail(ErrorCode::kNoSpace, fmt::format("{}: a template of {} bytes, above {}", name,
                                                 source.size(), kTemplateBytesMax));
  }
  if (ToUtf8(source) != source) {
    return Fail(ErrorCode::kCorrupt, fmt::format("{}: the template is not UTF-8", name));
  }
  Result<jinja::Block> block = jinja::ParseTemplate(source);
  if (!block) return In(name, block.error());
  return block;
}

// A special token is its name, or an object with it.
Result<jinja::Members> SpecialTokensOf(const JsonNode& config) {
  jinja::Members tokens;
  for (const char* name : kSpecialTokens) {
    const auto member = config.Find(name);
    if (!member) continue;
    QUIRE_ASSIGN(std::string text, member->is_object() ? member->Text("content") : member->Text());
    tokens.emplace_back(name, jinja::Value(std::move(text)));
  }
  return tokens;
}

}  // namespace

struct ChatTemplate::Impl {
  std::string name;  // of the file
  jinja::Block plain{};
  std::optional<jinja::Block> with_tools{};  // used instead when there are tools
  jinja::Members special_tokens{};

  // A template, or a list of named ones.
  Result<void> ReadField(const JsonNode& field) {
    if (!field.value().is_array()) {
      QUIRE_ASSIGN(const std::string source, field.Text());
      QUIRE_ASSIGN(plain, ParseBlock(source, field.Name()));
      return {};
    }
    bool found = false;
    QUIRE_ASSIGN(const std::vector<JsonNode> elements, field.Elements());
    for (const JsonNode& element : elements) {
      QUIRE_ASSIGN(const std::string kind, element.Text("name"));
      if (kind != "default" && kind != "tool_use") continue;
      QUIRE_ASSIGN(const std::string source, element.Text("template"));
      QUIRE_ASSIGN(jinja::Block block, ParseBlock(source, element.Name()));
      if (kind == "default") {
        plain = std::move(block);
        found = true;
      } else {
        with_tools = std::move(block);
      }
    }
    if (!found) return field.Unsupported("no template named default");
    return {};
  }
};

Result<std::optional<ChatTemplate>> ChatTemplate::Load(const std::string& directory) {
  QUIRE_ASSIGN(const auto jinja, ReadIfThere(directory + "/" + kTemplateFile, kTemplateBytesMax));
  QUIRE_ASSIGN(const auto config, ReadIfThere(directory + "/" + kConfigFile, kConfigBytesMax));
  return Parse(jinja, config, directory);
}

Result<std::optional<ChatTemplate>> ChatTemplate::Parse(const std::optional<std::string>& jinja,
                                                        const std::optional<std::string>& config,
                                                        const std::string& directory) {
  auto impl = std::make_shared<Impl>();
  bool found = false;
  if (jinja) {
    impl->name = directory + "/" + kTemplateFile;
    QUIRE_ASSIGN(impl->plain, ParseBlock(*jinja, impl->name));
    found = true;
  }
  if (config) {
    const std::string name = directory + "/" + kConfigFile;
    QUIRE_ASSIGN(const Json json, ParseJson(*config, name));
    const JsonNode root(json, name);
    QUIRE_ASSIGN(impl->special_tokens, SpecialTokensOf(root));
    const auto field = root.Find("chat_template");
    if (field && !found) {
      impl->name = field->Name();
      QUIRE_TRY(impl->ReadField(*field));
      found = true;
    }
  }
  if (!found) return std::nullopt;
  return ChatTemplate(std::move(impl));
}

Result<std::string> ChatTemplate::Render(const ChatInput& input) const {
  jinja::RenderInput render{.variables = impl_->special_tokens,
                            .strftime_now = input.strftime_now,
                            .limits = input.limits};
  const auto add = [&](std::string_view name, const jinja::OrderedJson& json) -> Result<void> {
    QUIRE_ASSIGN(jinja::Value value, jinja::Value::FromJson(json));
    render.variables.emplace_back(std::string(name), std::move(value));
    return {};
  };
  QUIRE_TRY(add("messages", input.messages));
  QUIRE_TRY(add("tools", input.tools));
  QUIRE_TRY(add("documents", nullptr));
  QUIRE_TRY(add("add_generation_prompt", input.add_generation_prompt));
  for (const auto& [name, value] : input.variables.items()) QUIRE_TRY(add(name, value));
  const bool use_tools = !input.tools.is_null() && impl_->with_tools.has_value();
  Result<std::string> text = jinja::Render(use_tools ? *impl_->with_tools : impl_->plain, render);
  if (!text) return In(impl_->name, text.error());
  return text;
}

}  // namespace quire::model
