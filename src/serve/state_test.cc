// The table of requests: which run, in which order, and which have ended.
#include "serve/state.h"

#include <gtest/gtest.h>

#include "serve/state_test_util.h"

namespace quire::serve {
namespace {

class TaskTableTest : public StateTest {
 protected:
  Task& Ask() { return Add({.prompt = Tokens(20, 1)}); }
  std::vector<Task*> Running() const {
    return {state_->tasks.running().begin(), state_->tasks.running().end()};
  }
};

TEST_F(TaskTableTest, ThoseThatRunAreSortedByAgeWhoeverStartsFirst) {
  Make(16);
  Task& first = Ask();
  Task& second = Ask();
  Task& third = Ask();
  for (Task* const task : {&second, &third, &first}) Start(*task);
  EXPECT_EQ(Running(), (std::vector<Task*>{&first, &second, &third}));
  state_->tasks.Stop(second);
  EXPECT_FALSE(second.running());
  EXPECT_EQ(Running(), (std::vector<Task*>{&first, &third}));
  Start(second);
  EXPECT_EQ(Running(), (std::vector<Task*>{&first, &second, &third}));
  EXPECT_EQ(state_->holders(), 3u);
}

TEST_F(TaskTableTest, ThoseThatHaveEndedAreTakenOutOnce) {
  Make(16);
  Task& first = Ask();
  Task& second = Ask();
  Start(first);
  Start(second);
  const RequestId id = first.id();
  EXPECT_TRUE(state_->tasks.TakeEnded().empty());
  first.End(Finish::kCancelled);
  EXPECT_EQ(state_->tasks.Find(id), &first);
  const auto ended = state_->tasks.TakeEnded();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].get(), &first);
  EXPECT_EQ(state_->tasks.Find(id), nullptr);
  EXPECT_EQ(Running(), (std::vector<Task*>{&second}));
  EXPECT_TRUE(state_->tasks.TakeEnded().empty());
}

// A turn that is only fed what its session holds already ends at once.
TEST_F(TaskTableTest, WhatHasNothingToReadEndsAsItStarts) {
  Make(16);
  const SessionId session = mailbox_->OpenSession({}, {}).value();
  keeper_->Take(std::get<OpenSessionCommand>(std::move(mailbox_->TakeCommands().back())));
  keeper_->Find(session)->text = Tokens(kBlock + 1, 1);
  test_->Run(keeper_->Find(session)->text);
  Task& task = Add({.max_tokens = 0, .session = session});
  Start(task);
  EXPECT_TRUE(task.ended());
  EXPECT_TRUE(state_->tasks.running().empty());
  EXPECT_EQ(ResponseOf(task.id())->finish, Finish::kLength);
}

}  // namespace
}  // namespace quire::serve
