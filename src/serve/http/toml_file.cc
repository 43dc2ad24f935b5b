#include "serve/http/toml_file.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <sstream>
#include <utility>

// Its parser as values: nothing here throws.
#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include "base/bits.h"

namespace quire::serve::http {

struct TomlTable::Node {
  toml::table table;
};

namespace {

const toml::table& AsTable(const void* table) { return *static_cast<const toml::table*>(table); }

std::string At(const std::string& path, const toml::source_region& source) {
  return fmt::format("{}:{}", path, source.begin.line);
}

std::optional<std::string> TextOf(const toml::node& node) {
  if (const auto* const text = node.as_string()) return text->get();
  if (const auto* const whole = node.as_integer()) return fmt::format("{}", whole->get());
  if (const auto* const number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* const flag = node.as_boolean()) return flag->get() ? "true" : "false";
  return std::nullopt;
}

}  // namespace

TomlTable::TomlTable(std::shared_ptr<const Node> root, const void* table, std::string path)
    : root_(std::move(root)), table_(table), path_(std::move(path)) {}

std::unexpected<Error> TomlTable::Bad(const std::string& field, const std::string& what) const {
  const toml::table& table = AsTable(table_);
  const toml::node* const node = table.get(field);
  const auto source = node != nullptr ? node->source() : table.source();
  return Fail(ErrorCode::kCorrupt, fmt::format("{}: '{}' {}", At(path_, source), field, what));
}

Result<std::optional<std::string>> TomlTable::Text(const std::string& field) {
  known_.insert(field);
  const toml::node* const node = AsTable(table_).get(field);
  if (node == nullptr) return std::nullopt;
  if (!node->is_string()) return Bad(field, "must be a text in quotes");
  return node->as_string()->get();
}

Result<std::vector<std::string>> TomlTable::Texts(const std::string& field) {
  known_.insert(field);
  std::vector<std::string> texts;
  const toml::node* const node = AsTable(table_).get(field);
  if (node == nullptr) return texts;
  if (!node->is_array()) return Bad(field, "must be an array of texts");
  for (const toml::node& each : *node->as_array()) {
    if (!each.is_string()) return Bad(field, "must be an array of texts");
    texts.push_back(each.as_string()->get());
  }
  return texts;
}

Result<uint64_t> TomlTable::Count(const std::string& field, uint64_t fallback, uint64_t most) {
  known_.insert(field);
  const toml::node* const node = AsTable(table_).get(field);
  if (node == nullptr) return fallback;
  const auto* const number = node->as_integer();
  if (number == nullptr || number->get() < 0 || static_cast<uint64_t>(number->get()) > most) {
    return Bad(field, fmt::format("must be a whole number from 0 to {}", most));
  }
  return static_cast<uint64_t>(number->get());
}

Result<uint64_t> TomlTable::Bytes(const std::string& field, uint64_t fallback) {
  known_.insert(field);
  const toml::node* const node = AsTable(table_).get(field);
  if (node == nullptr) return fallback;
  if (const auto text = TextOf(*node)) {
    if (const auto bytes = BytesOf(*text)) return *bytes;
  }
  return Bad(field, "must be a number of bytes: 4000000000, \"4GB\" or \"4GiB\"");
}

Result<double> TomlTable::Number(const std::string& field, double fallback, double least,
                                 double most) {
  known_.insert(field);
  const toml::node* const node = AsTable(table_).get(field);
  if (node == nullptr) return fallback;
  const std::optional<double> number = node->value<double>();
  if (!number || !(*number >= least && *number <= most)) {
    return Bad(field, fmt::format("must be a number from {} to {}", least, most));
  }
  return *number;
}

Result<bool> TomlTable::Flag(const std::string& field, bool fallback) {
  known_.insert(field);
  const toml::node* const node = AsTable(table_).get(field);
  if (node == nullptr) return fallback;
  if (!node->is_boolean()) return Bad(field, "must be true or false");
  return node->as_boolean()->get();
}

Result<std::vector<TomlTable>> TomlTable::Tables(const std::string& field) {
  known_.insert(field);
  std::vector<TomlTable> tables;
  const toml::node* const node = AsTable(table_).get(field);
  if (node == nullptr) return tables;
  const std::string what = fmt::format("must be tables: write [[{}]] above each", field);
  if (!node->is_array()) return Bad(field, what);
  for (const toml::node& each : *node->as_array()) {
    if (!each.is_table()) return Bad(field, what);
    tables.emplace_back(root_, each.as_table(), path_);
  }
  return tables;
}

Result<void> TomlTable::NothingElse() const {
  for (const auto& [name, node] : AsTable(table_)) {
    if (!known_.contains(std::string(name.str()))) {
      return Bad(std::string(name.str()), "is not a field that is known here");
    }
  }
  return {};
}

Result<std::vector<TomlSetting>> TomlTable::Settings() const {
  std::vector<TomlSetting> settings;
  for (const auto& [key, node] : AsTable(table_)) {
    TomlSetting setting{
        .name = std::string(key.str()), .values = {}, .where = At(path_, node.source())};
    bool plain = true;
    if (const auto* const array = node.as_array()) {
      for (const toml::node& each : *array) {
        const auto text = TextOf(each);
        plain = plain && text.has_value();
        if (text) setting.values.push_back(*text);
      }
    } else if (const auto text = TextOf(node)) {
      setting.values.push_back(*text);
    } else {
      plain = false;
    }
    if (!plain) return Bad(setting.name, "must be a text, a number, true or false");
    settings.push_back(std::move(setting));
  }
  return settings;
}

Result<TomlTable> ParseToml(std::string_view text, const std::string& path) {
  toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return Fail(ErrorCode::kCorrupt, fmt::format("{}:{}: {}", At(path, error.source()),
                                                 error.source().begin.column, error.description()));
  }
  auto root = std::make_shared<TomlTable::Node>(TomlTable::Node{std::move(parsed).table()});
  const toml::table* const table = &root->table;
  return TomlTable(std::move(root), table, path);
}

std::optional<uint64_t> BytesOf(std::string_view text) {
  struct Unit {
    std::string_view name;
    uint64_t bytes;
  };
  static constexpr std::array<Unit, 8> kUnits = {{{"", 1},
                                                  {"KB", 1000},
                                                  {"MB", 1000'000},
                                                  {"GB", 1000'000'000},
                                                  {"KiB", uint64_t{1} << 10},
                                                  {"MiB", uint64_t{1} << 20},
                                                  {"GiB", uint64_t{1} << 30},
                                                  {"TiB", uint64_t{1} << 40}}};
  uint64_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  const std::string_view unit(rest, text.data() + text.size());
  for (const Unit& each : kUnits) {
    if (each.name == unit) return CheckedMul(number, each.bytes);
  }
  return std::nullopt;
}

}  // namespace quire::serve::http
