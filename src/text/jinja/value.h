// The values of Jinja expressions. Values cannot change, except a namespace's members.
#ifndef QUIRE_TEXT_JINJA_VALUE_H_
#define QUIRE_TEXT_JINJA_VALUE_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "quire/error.h"

namespace quire::model::jinja {

/// JSON whose members keep their order, as prompts need it.
using OrderedJson = nlohmann::ordered_json;

struct Statement;
class Value;
using Items = std::vector<Value>;
using Members = std::vector<std::pair<std::string, Value>>;

/// Limits on nested containers, and on the size of a value if nothing in it were shared; larger
/// ones are errors, so that walking through a value ends soon.
inline constexpr uint32_t kValueDepthMax = 300;
inline constexpr uint64_t kValueBytesMax = 1 << 27;
inline constexpr size_t kMembersMax = 4096;  // of a mapping

/// Copies share text and containers.
///
/// Threads: values of one template run on one thread; constants of a parsed template on any
class Value {
 public:
  struct Undefined {};
  struct None {};
  struct Function {
    std::string_view name;  // of the language
  };
  struct Macro {
    const Statement* statement;
  };
  struct List;
  struct Map;
  struct Namespace;

  Value() = default;  // undefined
  explicit Value(None none) : rep_(none) {}
  explicit Value(bool value) : rep_(value) {}
  explicit Value(int64_t value) : rep_(value) {}
  explicit Value(double value) : rep_(value) {}
  explicit Value(std::string text) : rep_(std::make_shared<const std::string>(std::move(text))) {}
  explicit Value(std::string_view text) : Value(std::string(text)) {}
  explicit Value(const char* text) : Value(std::string(text)) {}
  explicit Value(Function function) : rep_(function) {}
  explicit Value(Macro macro) : rep_(macro) {}
  explicit Value(std::shared_ptr<Namespace> space) : rep_(std::move(space)) {}

  /// Errors: kNoSpace deeper or larger than the limits; kUnsupported a namespace inside
  static Result<Value> MakeList(Items items);
  static Result<Value> MakeMap(Members members);  // keys must differ
  /// Bytes that are not UTF-8 count as U+FFFD. Errors: as those
  static Result<Value> FromJson(const OrderedJson& json);

  bool is_undefined() const { return std::holds_alternative<Undefined>(rep_); }
  bool is_none() const { return std::holds_alternative<None>(rep_); }
  const bool* boolean() const { return std::get_if<bool>(&rep_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&rep_); }
  const double* real() const { return std::get_if<double>(&rep_); }
  const std::string* text() const;
  const Items* items() const;      // of a list
  const Members* members() const;  // of a map
  Namespace* space() const;
  const Macro* macro() const { return std::get_if<Macro>(&rep_); }
  const Function* function() const { return std::get_if<Function>(&rep_); }

  /// The member `key` of a map, or nothing.
  const Value* Find(std::string_view key) const;
  /// A number, also of true and false; nothing for other values.
  std::optional<double> Number() const;
  /// The same for whole numbers, but not for floats.
  std::optional<int64_t> Whole() const;

  /// What walking through it costs, about its bytes as text.
  uint64_t bytes() const;
  /// Python's truth.
  bool Truth() const;
  /// Python's ==.
  bool Equals(const Value& other) const;
  /// str(); nothing for undefined.
  std::string Text() const;
  /// repr().
  std::string Repr() const;
  /// json.dumps; with an indent, lines. Errors: kInvalidArgument what JSON does not have; kNoSpace
  /// more than bytes_max
  Result<std::string> ToJson(std::optional<uint32_t> indent, uint64_t bytes_max) const;
  /// "a string": for messages.
  std::string_view TypeName() const;

 private:
  uint32_t depth() const;
  void AppendRepr(std::string& out) const;
  bool EqualsMap(const Value& other) const;
  Result<void> AppendJson(std::optional<uint32_t> indent, uint64_t bytes_max, uint32_t level,
                          std::string& out) const;

  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Map>, std::shared_ptr<Namespace>,
               Function, Macro>
      rep_;
};

struct Value::Namespace {
  Members members;
};

}  // namespace quire::model::jinja

#endif  // QUIRE_TEXT_JINJA_VALUE_H_
