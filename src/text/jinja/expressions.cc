#include "text/jinja/template.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <optional>
#include <utility>

namespace quire::model::jinja {
namespace {

using Kind = Expression::Kind;

// Trees are walked by recursion.
constexpr uint32_t kDepthMax = 100;

ExpressionPtr Make(Kind kind, uint32_t line, std::string text = {}) {
  return std::make_unique<Expression>(
      Expression{.kind = kind, .line = line, .text = std::move(text)});
}

// Puts an operand, which may be null, into its whole.
Result<void> Attach(Expression& whole, ExpressionPtr operand) {
  if (operand != nullptr) whole.depth = std::max(whole.depth, operand->depth + 1);
  whole.operands.push_back(std::move(operand));
  if (whole.depth <= kDepthMax) return {};
  return FailAt(ErrorCode::kNoSpace, whole.line,
                fmt::format("an expression nested deeper than {}", kDepthMax));
}

// Methods stand in the order of precedence, the loosest first.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenReader& reader) : reader_(reader) {}

  Result<ExpressionPtr> Ternary() {
    QUIRE_TRY(reader_.Enter());
    QUIRE_ASSIGN(ExpressionPtr value, Or());
    while (reader_.IsName("if")) {
      ExpressionPtr whole = Make(Kind::kTernary, reader_.Take().line);
      QUIRE_ASSIGN(ExpressionPtr condition, Or());
      ExpressionPtr otherwise;
      if (reader_.TakeName("else")) {
        QUIRE_ASSIGN(otherwise, Ternary());
      }
      QUIRE_TRY(Attach(*whole, std::move(condition)));
      QUIRE_TRY(Attach(*whole, std::move(value)));
      QUIRE_TRY(Attach(*whole, std::move(otherwise)));
      value = std::move(whole);
    }
    reader_.Leave();
    return value;
  }

  Result<ExpressionPtr> Or() { return Logic("or", &ExpressionParser::And); }

 private:
  using Parse = Result<ExpressionPtr> (ExpressionParser::*)();

  Result<ExpressionPtr> And() { return Logic("and", &ExpressionParser::Not); }

  Result<ExpressionPtr> Logic(std::string_view name, Parse operand) {
    QUIRE_ASSIGN(ExpressionPtr first, (this->*operand)());
    if (!reader_.IsName(name)) return first;
    ExpressionPtr whole = Make(Kind::kLogic, reader_.line(), std::string(name));
    QUIRE_TRY(Attach(*whole, std::move(first)));
    while (reader_.TakeName(name)) {
      QUIRE_ASSIGN(ExpressionPtr next, (this->*operand)());
      QUIRE_TRY(Attach(*whole, std::move(next)));
    }
    return whole;
  }

  Result<ExpressionPtr> Not() {
    if (!reader_.IsName("not")) return Compare();
    return Unary(&ExpressionParser::Not);
  }

  Result<ExpressionPtr> Unary(Parse operand) {
    Token name = reader_.Take();
    ExpressionPtr whole = Make(Kind::kUnary, name.line, std::move(name.text));
    QUIRE_TRY(reader_.Enter());
    QUIRE_ASSIGN(ExpressionPtr inner, (this->*operand)());
    reader_.Leave();
    QUIRE_TRY(Attach(*whole, std::move(inner)));
    return whole;
  }

  Result<ExpressionPtr> Compare() {
    QUIRE_ASSIGN(ExpressionPtr first, Sum());
    return Chain(Kind::kCompare, std::move(first), &ExpressionParser::TakeComparison,
                 &ExpressionParser::Sum);
  }
  Result<ExpressionPtr> Sum() {
    QUIRE_ASSIGN(ExpressionPtr first, Joined());
    return Chain(Kind::kBinary, std::move(first), &ExpressionParser::TakeSum,
                 &ExpressionParser::Joined);
  }
  Result<ExpressionPtr> Joined() {
    QUIRE_ASSIGN(ExpressionPtr first, Product());
    return Chain(Kind::kBinary, std::move(first), &ExpressionParser::TakeJoin,
                 &ExpressionParser::Product);
  }
  Result<ExpressionPtr> Product() {
    QUIRE_ASSIGN(ExpressionPtr first, Signed());
    return Chain(Kind::kBinary, std::move(first), &ExpressionParser::TakeProduct,
                 &ExpressionParser::Signed);
  }

  using TakeName = std::optional<std::string> (ExpressionParser::*)();

  // Operands and the operators between them, flat: a chain may be long.
  Result<ExpressionPtr> Chain(Kind kind, ExpressionPtr first, TakeName take, Parse operand) {
    const uint32_t line = reader_.line();
    std::optional<std::string> name = (this->*take)();
    if (!name) return first;
    ExpressionPtr whole = Make(kind, line);
    QUIRE_TRY(Attach(*whole, std::move(first)));
    for (; name; name = (this->*take)()) {
      whole->names.push_back(*std::move(name));
      QUIRE_ASSIGN(ExpressionPtr next, (this->*operand)());
      QUIRE_TRY(Attach(*whole, std::move(next)));
    }
    return whole;
  }

  std::optional<std::string> TakeOneOf(std::initializer_list<std::string_view> operators) {
    for (const std::string_view text : operators) {
      if (reader_.TakeOperator(text)) return std::string(text);
    }
    return std::nullopt;
  }
  std::optional<std::string> TakeSum() { return TakeOneOf({"+", "-"}); }
  std::optional<std::string> TakeJoin() { return TakeOneOf({"~"}); }
  std::optional<std::string> TakeProduct() { return TakeOneOf({"*", "/", "//", "%"}); }
  std::optional<std::string> TakeComparison() {
    if (auto name = TakeOneOf({"==", "!=", "<=", ">=", "<", ">"})) return name;
    if (reader_.TakeName("in")) return "in";
    const Token& next = reader_.Peek(1);
    if (!reader_.IsName("not") || next.kind != TokenKind::kName || next.text != "in") {
      return std::nullopt;
    }
    reader_.Take();
    reader_.Take();
    return "not in";
  }

  Result<ExpressionPtr> Signed() {
    QUIRE_ASSIGN(ExpressionPtr value, UnaryMinus());
    while (true) {
      if (reader_.TakeOperator("|")) {
        QUIRE_ASSIGN(value, Filter(std::move(value)));
      } else if (reader_.IsName("is")) {
        QUIRE_ASSIGN(value, Test(std::move(value)));
      } else if (reader_.IsOperator("(")) {
        QUIRE_ASSIGN(value, Call(std::move(value)));
      } else {
        return value;
      }
    }
  }

  // A sign binds closer than filters: -x | abs is (-x) | abs.
  Result<ExpressionPtr> UnaryMinus() {
    if (reader_.IsOperator("-") || reader_.IsOperator("+")) {
      return Unary(&ExpressionParser::UnaryMinus);
    }
    QUIRE_ASSIGN(ExpressionPtr value, Primary());
    return Postfix(std::move(value));
  }

  Result<ExpressionPtr> Postfix(ExpressionPtr value) {
    while (true) {
      if (reader_.TakeOperator(".")) {
        ExpressionPtr whole = Make(Kind::kAttribute, reader_.line());
        if (reader_.Is(TokenKind::kInteger)) return reader_.Bad("a name behind '.'");
        QUIRE_ASSIGN(whole->text, reader_.ExpectName());
        QUIRE_TRY(Attach(*whole, std::move(value)));
        value = std::move(whole);
      } else if (reader_.IsOperator("[")) {
        QUIRE_ASSIGN(value, Subscript(std::move(value)));
      } else if (reader_.IsOperator("(")) {
        QUIRE_ASSIGN(value, Call(std::move(value)));
      } else {
        return value;
      }
    }
  }

  Result<ExpressionPtr> Subscript(ExpressionPtr value) {
    ExpressionPtr whole = Make(Kind::kSubscript, reader_.Take().line);
    QUIRE_TRY(Attach(*whole, std::move(value)));
    while (!reader_.IsOperator("]")) {
      if (reader_.TakeOperator(":")) {
        // An absent bound before a colon is null.
        if (whole->kind == Kind::kSubscript && whole->operands.size() == 1) {
          QUIRE_TRY(Attach(*whole, nullptr));
        }
        whole->kind = Kind::kSlice;
        if (reader_.IsOperator(":") || reader_.IsOperator("]")) {
          QUIRE_TRY(Attach(*whole, nullptr));
        }
        continue;
      }
      QUIRE_ASSIGN(ExpressionPtr operand, Ternary());
      QUIRE_TRY(Attach(*whole, std::move(operand)));
      if (!reader_.IsOperator(":") && !reader_.IsOperator("]")) return reader_.Bad("']' or ':'");
    }
    QUIRE_TRY(reader_.Expect("]"));
    const size_t operands = whole->operands.size();
    if (whole->kind == Kind::kSubscript ? operands != 2 : operands > 4)
      return reader_.Bad("an index");
    if (whole->kind == Kind::kSlice) whole->operands.resize(4);
    return whole;
  }

  // Arguments in brackets, behind operands[0] of `whole`.
  Result<void> Arguments(Expression& whole) {
    QUIRE_TRY(reader_.Expect("("));
    while (!reader_.TakeOperator(")")) {
      if (reader_.IsOperator("*") || reader_.IsOperator("**")) {
        return FailAt(ErrorCode::kUnsupported, reader_.line(), "arguments by * or **");
      }
      const Token& next = reader_.Peek(1);
      if (reader_.Is(TokenKind::kName) && next.kind == TokenKind::kOperator && next.text == "=") {
        std::string name = reader_.Take().text;
        reader_.Take();
        QUIRE_ASSIGN(ExpressionPtr value, Ternary());
        whole.depth = std::max(whole.depth, value->depth + 1);
        whole.named.emplace_back(std::move(name), std::move(value));
      } else {
        QUIRE_ASSIGN(ExpressionPtr value, Ternary());
        QUIRE_TRY(Attach(whole, std::move(value)));
      }
      if (!reader_.TakeOperator(",") && !reader_.IsOperator(")")) return reader_.Bad("')' or ','");
    }
    return {};
  }

  Result<ExpressionPtr> Call(ExpressionPtr callee) {
    ExpressionPtr whole = Make(Kind::kCall, reader_.line());
    QUIRE_TRY(Attach(*whole, std::move(callee)));
    QUIRE_TRY(Arguments(*whole));
    return whole;
  }

  Result<ExpressionPtr> Filter(ExpressionPtr value) {
    ExpressionPtr whole = Make(Kind::kFilter, reader_.line());
    QUIRE_ASSIGN(whole->text, reader_.ExpectName());
    QUIRE_TRY(Attach(*whole, std::move(value)));
    if (reader_.IsOperator("(")) QUIRE_TRY(Arguments(*whole));
    return whole;
  }

  Result<ExpressionPtr> Test(ExpressionPtr value) {
    ExpressionPtr whole = Make(Kind::kTest, reader_.Take().line);
    const bool negated = reader_.TakeName("not");
    QUIRE_ASSIGN(whole->text, reader_.ExpectName());
    QUIRE_TRY(Attach(*whole, std::move(value)));
    if (reader_.IsOperator("(")) {
      QUIRE_TRY(Arguments(*whole));
    } else if (BeginsOperand()) {
      QUIRE_ASSIGN(ExpressionPtr primary, Primary());
      QUIRE_ASSIGN(ExpressionPtr argument, Postfix(std::move(primary)));
      QUIRE_TRY(Attach(*whole, std::move(argument)));
    }
    if (!negated) return whole;
    ExpressionPtr inverse = Make(Kind::kUnary, whole->line, "not");
    QUIRE_TRY(Attach(*inverse, std::move(whole)));
    return inverse;
  }

  // Whether the next token can be the argument of a test without brackets: `is divisibleby 3`.
  bool BeginsOperand() const {
    if (reader_.IsOperator("[") || reader_.IsOperator("{")) return true;
    if (reader_.Is(TokenKind::kName)) {
      static constexpr std::string_view kNot[] = {"else", "or", "and", "if", "is", "not", "in"};
      return std::ranges::find(kNot, reader_.Peek().text) == std::end(kNot);
    }
    return reader_.Is(TokenKind::kString) || reader_.Is(TokenKind::kInteger) ||
           reader_.Is(TokenKind::kFloat);
  }

  Result<ExpressionPtr> Primary() {
    const Token& token = reader_.Peek();
    switch (token.kind) {
      case TokenKind::kName: return Name();
      case TokenKind::kString: {
        ExpressionPtr whole = Make(Kind::kLiteral, token.line);
        std::string text;
        while (reader_.Is(TokenKind::kString)) text += reader_.Take().text;
        whole->value = Value(std::move(text));
        return whole;
      }
      case TokenKind::kInteger:
      case TokenKind::kFloat: return Number();
      default: break;
    }
    if (reader_.TakeOperator("(")) return Bracketed();
    if (reader_.IsOperator("[")) return List();
    if (reader_.IsOperator("{")) return Map();
    return reader_.Bad("an expression");
  }

  Result<ExpressionPtr> Name() {
    Token token = reader_.Take();
    const std::string& text = token.text;
    ExpressionPtr whole = Make(Kind::kLiteral, token.line);
    if (text == "true" || text == "True" || text == "false" || text == "False") {
      whole->value = Value(text[0] == 't' || text[0] == 'T');
    } else if (text == "none" || text == "None") {
      whole->value = Value(Value::None());
    } else {
      whole->kind = Kind::kName;
      whole->text = std::move(token.text);
    }
    return whole;
  }

  Result<ExpressionPtr> Number() {
    const Token token = reader_.Take();
    ExpressionPtr whole = Make(Kind::kLiteral, token.line);
    const char* const end = token.text.data() + token.text.size();
    int64_t integer = 0;
    double real = 0;
    const bool whole_number = token.kind == TokenKind::kInteger;
    const std::from_chars_result read = whole_number
                                            ? std::from_chars(token.text.data(), end, integer)
                                            : std::from_chars(token.text.data(), end, real);
    if (read.ec != std::errc()) {
      return FailAt(ErrorCode::kUnsupported, token.line, "a number of this size");
    }
    whole->value = whole_number ? Value(integer) : Value(real);
    return whole;
  }

  // "(a)" is a, "(a,)" and "(a, b)" are lists: nothing here tells tuples from lists.
  Result<ExpressionPtr> Bracketed() {
    const uint32_t line = reader_.line();
    if (reader_.TakeOperator(")")) return Make(Kind::kList, line);
    QUIRE_ASSIGN(ExpressionPtr first, Ternary());
    if (reader_.TakeOperator(")")) return first;
    ExpressionPtr whole = Make(Kind::kList, line);
    QUIRE_TRY(Attach(*whole, std::move(first)));
    while (reader_.TakeOperator(",") && !reader_.IsOperator(")")) {
      QUIRE_ASSIGN(ExpressionPtr next, Ternary());
      QUIRE_TRY(Attach(*whole, std::move(next)));
    }
    QUIRE_TRY(reader_.Expect(")"));
    return whole;
  }

  Result<ExpressionPtr> List() {
    ExpressionPtr whole = Make(Kind::kList, reader_.Take().line);
    while (!reader_.TakeOperator("]")) {
      QUIRE_ASSIGN(ExpressionPtr item, Ternary());
      QUIRE_TRY(Attach(*whole, std::move(item)));
      if (!reader_.TakeOperator(",") && !reader_.IsOperator("]")) return reader_.Bad("']' or ','");
    }
    return whole;
  }

  Result<ExpressionPtr> Map() {
    ExpressionPtr whole = Make(Kind::kMap, reader_.Take().line);
    while (!reader_.TakeOperator("}")) {
      QUIRE_ASSIGN(ExpressionPtr key, Ternary());
      QUIRE_TRY(reader_.Expect(":"));
      QUIRE_ASSIGN(ExpressionPtr value, Ternary());
      QUIRE_TRY(Attach(*whole, std::move(key)));
      QUIRE_TRY(Attach(*whole, std::move(value)));
      if (!reader_.TakeOperator(",") && !reader_.IsOperator("}")) return reader_.Bad("'}' or ','");
    }
    return whole;
  }

  TokenReader& reader_;
};

}  // namespace

Result<ExpressionPtr> ParseExpression(TokenReader& reader) {
  return ExpressionParser(reader).Ternary();
}

Result<ExpressionPtr> ParseWithoutTernary(TokenReader& reader) {
  return ExpressionParser(reader).Or();
}

}  // namespace quire::model::jinja
