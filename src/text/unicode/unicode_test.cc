
#include <gtest/gtest.h>

#include <string>

#include "text/unicode/unicode.h"

namespace quire::model {
namespace {

// Examples of Unicode Standard Annex 15.
TEST(NfcTest, Composes) {
  EXPECT_EQ(ToNfc("plain"), "plain");
  EXPECT_EQ(ToNfc("e\u0301"), "\u00e9");
  EXPECT_EQ(ToNfc("\u212b\u2126"), "\u00c5\u03a9");                          // singletons
  EXPECT_EQ(ToNfc("\u0958\U0001d15e"), "\u0915\u093c\U0001d157\U0001d165");  // exclusions
  EXPECT_EQ(ToNfc("\u1112\u1161\u11ab"), "\ud55c");                          // Hangul
  EXPECT_EQ(ToNfc("s\u0307\u0323"), "\u1e69");                               // marks out of order
  EXPECT_EQ(ToNfc("\ufb01"), "\ufb01");                                      // compatibility stays
}

// Marks of two classes by turns: ordering them pairwise takes the square of their number.
TEST(NfcTest, LongRunsOfMarksAreOrderedStably) {
  std::string text = "x";
  std::string wanted = "x";
  for (int i = 0; i < 200'000; ++i) {
    text += i % 2 == 0 ? "\u0315" : "\u0316";  // classes 232 and 220
    AppendUtf8(i < 100'000 ? 0x316 : 0x315, wanted);
  }
  EXPECT_EQ(ToNfc(text), wanted);
}

TEST(Utf8Test, CharactersBackAndForth) {
  for (const char32_t code :
       {0x0u, 0x7fu, 0x80u, 0x7ffu, 0x800u, 0xd7ffu, 0xffffu, 0x10000u, 0x10ffffu}) {
    std::string text = "a";
    AppendUtf8(code, text);
    EXPECT_EQ(ToUtf8(text), text);
    size_t at = 1;
    EXPECT_EQ(NextCharacter(text, at), code);
    EXPECT_EQ(at, text.size());
    EXPECT_EQ(PreviousCharacter(text, text.size()), 1u);
  }
}

}  // namespace
}  // namespace quire::model
