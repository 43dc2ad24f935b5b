#include "serve/http/access_log.h"

#include <gtest/gtest.h>

#include <string>

namespace quire::serve::http {
namespace {

constexpr uint64_t kUnixUs = 1'700'000'000'012'345;

TEST(AccessLog, ALineSaysWhatWasAskedAndAnswered) {
  AccessLine line{.request_id = "req_1",
                  .remote = "127.0.0.1",
                  .tenant = "alice",
                  .method = "GET",
                  .path = "/healthz",
                  .status = 200,
                  .ms = 1.23456,
                  .bytes_in = 3,
                  .bytes_out = 4};
  const std::string plain =
      R"({"time":"2023-11-14T22:13:20.012345Z","request_id":"req_1","remote":"127.0.0.1",)"
      R"("tenant":"alice","method":"GET","path":"/healthz","status":200,"ms":1.235,)"
      R"("bytes_in":3,"bytes_out":4)";
  EXPECT_EQ(AccessLineJson(line, kUnixUs), plain + "}\n");
  line.traceparent = "00-1";
  line.call = CallReport{.prompt_tokens = 11,
                         .reused_tokens = 12,
                         .loaded_tokens = 13,
                         .computed_tokens = 14,
                         .recomputed_tokens = 15,
                         .generated_tokens = 16,
                         .preemptions = 17,
                         .missed_tokens = {{MissReason::kEvicted, 18}, {MissReason::kQuota, 19}},
                         .ttft_ms = 2.00049,
                         .ms_per_token = 0.5,
                         .finish = "stop"};
  EXPECT_EQ(AccessLineJson(line, kUnixUs),
            plain + R"(,"traceparent":"00-1","finish":"stop","prompt_tokens":11,)"
                    R"("generated_tokens":16,"ttft_ms":2.0,"ms_per_token":0.5,"preemptions":17,)"
                    R"("cache":{"reused_tokens":12,"loaded_tokens":13,"computed_tokens":14,)"
                    R"("recomputed_tokens":15,"missed":{"evicted":18,"quota":19}}})"
                    "\n");
}

}  // namespace
}  // namespace quire::serve::http
