#include "env/dynamic_library.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(DynamicLibrary, FindsFunctionsAndNamesWhatIsMissing) {
  const auto library = DynamicLibrary::Load("libc.so.6", "libc6");
  ASSERT_TRUE(library.has_value());
  int (*absolute)(int) = nullptr;
  ASSERT_TRUE(library->Find("abs", absolute).has_value());
  EXPECT_EQ(absolute(-3), 3);
  const auto none = library->Find("quire_no_such_function", absolute);
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().message.find("quire_no_such_function"), std::string::npos);
  const auto missing = DynamicLibrary::Load("libnone.so.1", "libnone1");
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(missing.error().message.find("install the package libnone1"), std::string::npos);
}

}  // namespace
}  // namespace quire
