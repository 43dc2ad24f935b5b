// Memory that runs out while a token is chosen, on whatever thread: an error of that request.
#include "base/failing_new.h"

#include <gtest/gtest.h>

#include "env/clock.h"
#include "serve/answer.h"

namespace quire::serve {
namespace {

#if defined(QUIRE_FAILING_NEW)
TEST(NoMemory, ATokenThatCannotBeChosenIsAnError) {
  const ManualClock clock;
  Mailbox mailbox{{.requests_max = 8, .sessions_max = 8, .events_max = 100}};
  const std::vector<float> logits = {0, 3, 1, 2};
  const std::vector<TokenId> text = {1};
  const Request request{.prompt = text,
                        .max_tokens = 5,
                        .sampling = {.temperature = 1.0f, .top_p = 0.9f},
                        .logprobs = 2};
  const RequestId id = mailbox.Submit(request, 0).value();
  int64_t failing = 0;
  for (;; ++failing) {
    Answer answer(id, request, 0, mailbox, clock);
    const Attempt attempt = WithoutMemory(failing, [&] { answer.Choose(logits, text); });
    const auto drawn = answer.Draw(logits, text);
    ASSERT_EQ(drawn.has_value(), !attempt.failed) << failing;
    if (!attempt.failed) break;
    EXPECT_EQ(drawn.error().code, ErrorCode::kNoSpace);
    EXPECT_FALSE(mailbox.Next(id).has_value()) << "nothing is said";
  }
  EXPECT_GT(failing, 0);
}
#endif

}  // namespace
}  // namespace quire::serve
