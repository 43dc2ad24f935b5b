#include "text/jinja/template.h"

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "text/jinja/lexer.h"

namespace quire::model::jinja {
namespace {

using Kind = Statement::Kind;

Statement Make(Kind kind, uint32_t line) { return Statement{.kind = kind, .line = line}; }

class Parser {
 public:
  explicit Parser(TokenReader& reader) : reader_(reader) {}

  Result<Block> Template() {
    QUIRE_ASSIGN(Block block, Until({}));
    if (!reader_.Is(TokenKind::kEnd)) {
      return FailAt(ErrorCode::kCorrupt, reader_.line(),
                    fmt::format("'{}' closes nothing", reader_.Peek(1).text));
    }
    return block;
  }

 private:
  // Statements up to a tag that begins with one of `ends`, or to the end of the file.
  Result<Block> Until(std::initializer_list<std::string_view> ends) {
    QUIRE_TRY(reader_.Enter());
    Block block;
    while (!reader_.Is(TokenKind::kEnd)) {
      const Token& token = reader_.Peek();
      if (token.kind == TokenKind::kText) {
        block.push_back(Make(Kind::kText, token.line));
        block.back().text = reader_.Take().text;
      } else if (token.kind == TokenKind::kOutputBegin) {
        block.push_back(Make(Kind::kOutput, reader_.Take().line));
        QUIRE_ASSIGN(ExpressionPtr value, ParseExpression(reader_));
        block.back().expressions.push_back(std::move(value));
        QUIRE_TRY(reader_.Expect(TokenKind::kOutputEnd, "'}}'"));
      } else {
        const std::string& name = reader_.Peek(1).text;
        if (std::ranges::find(ends, name) != ends.end() || IsClosing(name)) break;
        QUIRE_ASSIGN(Statement statement, Tag());
        block.push_back(std::move(statement));
      }
    }
    reader_.Leave();
    return block;
  }

  static bool IsClosing(std::string_view name) {
    return name.starts_with("end") || name == "else" || name == "elif";
  }

  // The tag {% name %}, which must come next.
  Result<void> Close(std::string_view name) {
    if (!reader_.Is(TokenKind::kStatementBegin) || reader_.Peek(1).text != name) {
      return FailAt(ErrorCode::kCorrupt, reader_.line(), fmt::format("{{% {} %}} expected", name));
    }
    reader_.Take();
    reader_.Take();
    return EndTag();
  }

  Result<void> EndTag() { return reader_.Expect(TokenKind::kStatementEnd, "'%}'"); }

  Result<Statement> Tag() {
    const uint32_t line = reader_.Take().line;
    QUIRE_ASSIGN(const std::string name, reader_.ExpectName());
    if (name == "if") return If(line);
    if (name == "for") return For(line);
    if (name == "set") return Set(line);
    if (name == "macro") return Macro(line);
    if (name == "generation") {
      Statement statement = Make(Kind::kBlock, line);
      QUIRE_TRY(Body(statement, "endgeneration"));
      return statement;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) {
        return FailAt(ErrorCode::kCorrupt, line, fmt::format("{} outside of a loop", name));
      }
      QUIRE_TRY(EndTag());
      return Make(name == "break" ? Kind::kBreak : Kind::kContinue, line);
    }
    return FailAt(ErrorCode::kUnsupported, line, fmt::format("{{% {} %}}", name));
  }

  // The rest of the tag, and the block that {% end %} closes.
  Result<void> Body(Statement& statement, std::string_view end) {
    QUIRE_TRY(EndTag());
    QUIRE_ASSIGN(Block block, Until({end}));
    statement.blocks.push_back(std::move(block));
    return Close(end);
  }

  Result<Statement> If(uint32_t line) {
    Statement statement = Make(Kind::kIf, line);
    while (true) {
      QUIRE_ASSIGN(ExpressionPtr condition, ParseExpression(reader_));
      statement.expressions.push_back(std::move(condition));
      QUIRE_TRY(EndTag());
      QUIRE_ASSIGN(Block block, Until({"elif", "else", "endif"}));
      statement.blocks.push_back(std::move(block));
      if (reader_.Peek(1).text != "elif") break;
      reader_.Take();
      reader_.Take();
    }
    if (reader_.Peek(1).text == "else") {
      QUIRE_TRY(Close("else"));
      QUIRE_ASSIGN(Block block, Until({"endif"}));
      statement.blocks.push_back(std::move(block));
    }
    QUIRE_TRY(Close("endif"));
    return statement;
  }

  Result<Statement> For(uint32_t line) {
    Statement statement = Make(Kind::kFor, line);
    QUIRE_ASSIGN(statement.targets, Targets());
    if (!reader_.TakeName("in")) return reader_.Bad("'in'");
    QUIRE_ASSIGN(ExpressionPtr range, ParseWithoutTernary(reader_));
    statement.expressions.push_back(std::move(range));
    ExpressionPtr condition;
    if (reader_.TakeName("if")) {
      QUIRE_ASSIGN(condition, ParseExpression(reader_));
    }
    statement.expressions.push_back(std::move(condition));
    if (reader_.IsName("recursive")) {
      return FailAt(ErrorCode::kUnsupported, line, "a recursive loop");
    }
    QUIRE_TRY(EndTag());
    ++loops_;
    QUIRE_ASSIGN(Block body, Until({"else", "endfor"}));
    --loops_;
    statement.blocks.push_back(std::move(body));
    if (reader_.Peek(1).text == "else") {
      QUIRE_TRY(Close("else"));
      QUIRE_ASSIGN(Block otherwise, Until({"endfor"}));
      statement.blocks.push_back(std::move(otherwise));
    }
    QUIRE_TRY(Close("endfor"));
    return statement;
  }

  Result<std::vector<std::string>> Targets() {
    std::vector<std::string> targets;
    const bool bracket = reader_.TakeOperator("(");
    do {
      QUIRE_ASSIGN(std::string name, reader_.ExpectName());
      targets.push_back(std::move(name));
    } while (reader_.TakeOperator(","));
    if (bracket) QUIRE_TRY(reader_.Expect(")"));
    return targets;
  }

  Result<Statement> Set(uint32_t line) {
    Statement statement = Make(Kind::kSet, line);
    QUIRE_ASSIGN(statement.targets, Targets());
    if (reader_.TakeOperator(".")) {
      QUIRE_ASSIGN(statement.text, reader_.ExpectName());
    }
    if (reader_.IsOperator("|")) {
      return FailAt(ErrorCode::kUnsupported, line, "a filter on a set block");
    }
    if (!reader_.TakeOperator("=")) {
      statement.kind = Kind::kSetBlock;
      if (statement.targets.size() != 1 || !statement.text.empty()) return reader_.Bad("'='");
      QUIRE_TRY(Body(statement, "endset"));
      return statement;
    }
    QUIRE_ASSIGN(ExpressionPtr value, ParseExpression(reader_));
    if (reader_.IsOperator(",")) {
      return FailAt(ErrorCode::kUnsupported, line, "a tuple without brackets");
    }
    statement.expressions.push_back(std::move(value));
    QUIRE_TRY(EndTag());
    return statement;
  }

  Result<Statement> Macro(uint32_t line) {
    Statement statement = Make(Kind::kMacro, line);
    QUIRE_ASSIGN(statement.text, reader_.ExpectName());
    QUIRE_TRY(reader_.Expect("("));
    while (!reader_.TakeOperator(")")) {
      QUIRE_ASSIGN(std::string name, reader_.ExpectName());
      statement.targets.push_back(std::move(name));
      ExpressionPtr fallback;
      if (reader_.TakeOperator("=")) {
        QUIRE_ASSIGN(fallback, ParseExpression(reader_));
      }
      statement.expressions.push_back(std::move(fallback));
      if (!reader_.TakeOperator(",") && !reader_.IsOperator(")")) return reader_.Bad("')' or ','");
    }
    const int outer_loops = std::exchange(loops_, 0);
    QUIRE_TRY(Body(statement, "endmacro"));
    loops_ = outer_loops;
    return statement;
  }

  TokenReader& reader_;
  int loops_ = 0;  // around the statement
};

}  // namespace

Result<Block> ParseTemplate(std::string_view source) {
  QUIRE_ASSIGN(std::vector<Token> tokens, Lex(source));
  TokenReader reader(std::move(tokens));
  return Parser(reader).Template();
}

}  // namespace quire::model::jinja
