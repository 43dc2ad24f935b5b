#include "apps/quire/flags.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <utility>

#include "apps/quire/command.h"

namespace quire::app {
namespace {

class FlagsTest : public testing::Test {
 protected:
  int RunLine(std::vector<std::string> words) {
    words.insert(words.begin(), {"program", "command"});
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int exit = RunProgram({.name = "program",
                                 .summary = "summary",
                                 .version = "1",
                                 .footer = "footer",
                                 .add_commands = [this](Command& program) { AddFlags(program); }},
                                static_cast<int>(argv.size()), argv.data());
    std::fflush(stdout);
    said_ = testing::internal::GetCapturedStdout();
    complaint_ = testing::internal::GetCapturedStderr();
    return exit;
  }

  void AddFlags(Command& program) {
    Command command = program.AddCommand("command", "what it does");
    command.Add({.name = "--word", .value = &word_, .help = "a word", .shows_default = true});
    command.Add({.name = "--number", .value = &number_, .check = Between<uint32_t>{1, 9}});
    command.Add({.name = "--total", .value = &total_});
    command.Add({.name = "--share", .value = &share_, .needs = "--word"});
    command.Add({.name = "--list", .value = &list_, .check = Between<uint64_t>{1, 9}});
    command.Add({.name = "--on", .value = &on_, .excludes = "--number"});
    command.Add({.name = "!--off", .value = &off_, .group = ""});
    command.Add({.name = "--kind", .value = &kind_, .check = OneOf{"a", "b"}});
    command.Run([this, command]() mutable {
      if (!wanted_.empty()) problem_ = command.Set(wanted_, wanted_text_);
      word_is_given_ = command.IsGiven("--word");
      return kFailedCheck;
    });
  }

  std::string word_ = "none";
  uint32_t number_ = 5;
  uint64_t total_ = 5;
  std::optional<float> share_;
  std::vector<uint64_t> list_;
  bool on_ = false;
  bool off_ = true;
  std::string kind_;
  std::string wanted_, wanted_text_, problem_;
  bool word_is_given_ = false;
  std::string said_, complaint_;
};

TEST_F(FlagsTest, WhatCountsIsNotBelowZero) {
  EXPECT_EQ(RunLine({"--number", "-3"}), kBadUsage);
  EXPECT_EQ(RunLine({"--total", "-3"}), kBadUsage);
  EXPECT_NE(complaint_.find("'-3' is below 0"), std::string::npos) << complaint_;
  EXPECT_EQ(RunLine({"--list", "3,-3"}), kBadUsage);
}

TEST_F(FlagsTest, ValuesGoWhereTheTableSays) {
  EXPECT_EQ(RunLine({"--word", "x", "--number", "3", "--share", "0.5", "--list", "1,2", "--list",
                     "3", "--off", "--kind", "b"}),
            kFailedCheck);  // what the command gave
  EXPECT_EQ(word_, "x");
  EXPECT_EQ(number_, 3u);
  EXPECT_EQ(share_, 0.5f);
  EXPECT_EQ(list_, (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_FALSE(on_);
  EXPECT_FALSE(off_);
  EXPECT_EQ(kind_, "b");
  EXPECT_TRUE(word_is_given_);
}

TEST_F(FlagsTest, TheLastOfAFlagCounts) {
  RunLine({"--word", "x", "--word", "y"});
  EXPECT_EQ(word_, "y");
}

TEST_F(FlagsTest, WhatATableForbidsIsBadUsage) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> lines = {
      {{"--number", "10"}, "--number: Value 10 not in range 1 to 9"},
      {{"--list", "1,10"}, "--list: Value 10 not in range 1 to 9"},
      {{"--kind", "c"}, "--kind: c not in {a,b}"},
      {{"--share", "1"}, "--share requires --word"},
      {{"--on", "--number", "1"}, "--number excludes --on"},
      {{"--nothing"}, "The following argument was not expected: --nothing"}};
  for (const auto& [line, complaint] : lines) {
    EXPECT_EQ(RunLine(line), kBadUsage) << complaint;
    EXPECT_EQ(complaint_, complaint + "\nRun with --help for more information.\n");
  }
}

TEST_F(FlagsTest, HelpNamesKindsAndDefaultsAndHidesWhatHasNoGroup) {
  EXPECT_EQ(RunLine({"--help"}), kOk);
  EXPECT_NE(said_.find("--word TEXT=none"), std::string::npos) << said_;
  EXPECT_NE(said_.find("--number UINT:UINT in [1 - 9]"), std::string::npos) << said_;
  EXPECT_EQ(said_.find("--off"), std::string::npos) << said_;
}

TEST_F(FlagsTest, AFlagSetLaterIsCheckedAsOnTheLine) {
  wanted_ = "--number";
  wanted_text_ = "7";
  RunLine({});
  EXPECT_EQ(problem_, "");
  EXPECT_EQ(number_, 7u);
  EXPECT_FALSE(word_is_given_);
  wanted_text_ = "70";
  RunLine({});
  EXPECT_EQ(problem_, "--number: Value 70 not in range 1 to 9");
}

TEST(Commands, HelpIsPrintable) {
  using AddCommand = void (*)(Command& program);
  for (const auto& [name, add] :
       std::initializer_list<std::pair<const char*, AddCommand>>{{"demo", AddDemo},
                                                                 {"generate", AddGenerate},
                                                                 {"eval", AddEval},
                                                                 {"plan", AddPlan},
                                                                 {"serve", AddServe},
                                                                 {"bench", AddBench},
                                                                 {"replay", AddReplay},
                                                                 {"selftest", AddSelftest},
                                                                 {"store", AddStore},
                                                                 {"sim", AddSim},
                                                                 {"info", AddInfo}}) {
    std::string words[] = {"quire", name, "--help"};
    char* argv[] = {words[0].data(), words[1].data(), words[2].data()};
    testing::internal::CaptureStdout();
    EXPECT_EQ(RunProgram({.name = "quire",
                          .summary = "summary",
                          .version = "1",
                          .footer = "footer",
                          .add_commands = add},
                         3, argv),
              kOk);
    std::fflush(stdout);
    const std::string help = testing::internal::GetCapturedStdout();
    EXPECT_NE(help.find("--help"), std::string::npos) << name;
    EXPECT_EQ(std::ranges::find_if(help, [](unsigned char c) { return c < ' ' && c != '\n'; }),
              help.end())
        << name;
  }
}

}  // namespace
}  // namespace quire::app
