#include <gtest/gtest.h>
#define ZLIB_CONST  // next_in points to const
#include <zlib.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "apps/quire/trace.h"

namespace quire::app {
namespace {

using Ids = std::vector<uint64_t>;

std::string Gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<const Bytef*>(text.data());
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Line(const std::string& timestamp, const std::string& ids) {
  return R"({"timestamp": )" + timestamp +
         R"(, "input_length": 30, "output_length": 5, "hash_ids": )" + ids + "}\n";
}

std::string MessageOf(const std::string& bytes) {
  const auto trace = ParseTrace(bytes, "t.gz");
  EXPECT_FALSE(trace.has_value());
  if (trace) return "";
  EXPECT_EQ(trace.error().code, ErrorCode::kCorrupt);
  return trace.error().message;
}

TEST(Trace, ReadsGzipAndText) {
  const std::string text = Line("3", "[0, 1, 18446744073709551615]") + "\n" +
                           R"({"timestamp":4,"session":"s","input_length":1,"output_length":0,)"
                           R"("hash_ids":[]})";  // an unknown member; no newline at the end
  for (const std::string& bytes : {text, Gzip(text)}) {
    const auto trace = ParseTrace(bytes, "t");
    ASSERT_TRUE(trace) << trace.error().message;
    ASSERT_EQ(trace->size(), 2u);
    EXPECT_EQ((*trace)[0].timestamp_ms, 3u);
    EXPECT_EQ((*trace)[0].input_tokens, 30u);
    EXPECT_EQ((*trace)[0].output_tokens, 5u);
    EXPECT_EQ((*trace)[0].block_ids, (Ids{0, 1, UINT64_MAX}));
    EXPECT_EQ((*trace)[1].timestamp_ms, 4u);
    EXPECT_TRUE((*trace)[1].block_ids.empty());
  }
  EXPECT_TRUE(ParseTrace("", "t")->empty());
  EXPECT_TRUE(ParseTrace(Gzip(""), "t")->empty());
}

TEST(Trace, LinesMayLieAcrossPiecesAndMembers) {
  std::string text;
  std::string members;
  for (uint64_t i = 0; i < 20'000; ++i) {
    const std::string line = Line(std::to_string(i), "[" + std::to_string(i * 7) + "]");
    text += line;
    if (i % 5000 == 0) {
      // Cut in the middle of the line.
      members += Gzip(text.substr(0, text.size() - 9));
      text.erase(0, text.size() - 9);
    }
  }
  members += Gzip(text);
  const auto trace = ParseTrace(members, "t");
  ASSERT_TRUE(trace) << trace.error().message;
  ASSERT_EQ(trace->size(), 20'000u);
  for (uint64_t i = 0; i < trace->size(); ++i) {
    EXPECT_EQ((*trace)[i].timestamp_ms, i);
    EXPECT_EQ((*trace)[i].block_ids, Ids{i * 7});
  }
}

TEST(Trace, WhatIsWrongIsNamedWithItsLine) {
  const std::string good = Line("1", "[1]");
  EXPECT_NE(MessageOf(good + "{\n").find("t.gz: line 2"), std::string::npos);
  EXPECT_NE(MessageOf(good + "\n[]\n").find("t.gz: line 3"), std::string::npos);
  EXPECT_NE(MessageOf(Line("-1", "[1]")).find("timestamp"), std::string::npos);
  EXPECT_NE(MessageOf(Line("1.5", "[1]")).find("timestamp"), std::string::npos);
  for (const char* const ids : {"7", "{}", "null", "[-1]", "[1.5]", "[\"1\"]", "[1e30]"}) {
    EXPECT_NE(MessageOf(Line("1", ids)).find("t.gz: line 1: hash_ids"), std::string::npos) << ids;
  }
  EXPECT_NE(MessageOf(R"({"timestamp":1})").find("input_length"), std::string::npos);
}

TEST(Trace, DamagedGzipIsAnError) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += Line(std::to_string(i), "[1, 2]");
  const std::string bytes = Gzip(text);
  for (size_t length = 2; length < bytes.size(); ++length) {
    EXPECT_EQ(MessageOf(bytes.substr(0, length)), "t.gz: gzip cut short") << length;
  }
  std::string damaged = bytes;
  damaged[bytes.size() - 6] ^= 1;  // in the checksum
  EXPECT_EQ(MessageOf(damaged), "t.gz: damaged gzip");
  EXPECT_EQ(MessageOf(bytes + "rest"), "t.gz: damaged gzip");
}

TEST(Trace, ALineWithoutEndTakesNoMoreThanItsLimit) {
  const std::string bytes = Gzip(std::string(40 << 20, ' '));  // 40 KB
  EXPECT_EQ(MessageOf(bytes), "t.gz: line 1 has more than 16777216 bytes");
}

TEST(Trace, AMissingFileIsNotFound) {
  const auto trace = ReadTrace("no/such/file");
  ASSERT_FALSE(trace);
  EXPECT_EQ(trace.error().code, ErrorCode::kNotFound);
}

// Ten sessions of three turns below a block that all share; session s begins with block 100 s.
Trace TenSessions() {
  Trace trace;
  for (uint64_t turn = 0; turn < 3; ++turn) {
    for (uint64_t session = 1; session <= 10; ++session) {
      TraceRequest request{.timestamp_ms = turn * 1000 + session * 10,
                           .input_tokens = session,
                           .output_tokens = turn,
                           .block_ids = {7}};
      for (uint64_t block = 0; block <= turn; ++block) {
        request.block_ids.push_back(session * 100 + block);
      }
      trace.push_back(request);
    }
  }
  return trace;
}

bool Equal(const Trace& a, const Trace& b) {
  return std::ranges::equal(a, b, [](const TraceRequest& x, const TraceRequest& y) {
    return x.timestamp_ms == y.timestamp_ms && x.block_ids == y.block_ids;
  });
}

TEST(Resample, DrawsWholeSessionsWithReplacement) {
  const Trace trace = TenSessions();
  bool some_twice = false;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Trace drawn = Resample(trace, seed, 0).value();
    ASSERT_EQ(drawn.size(), trace.size());
    EXPECT_TRUE(std::ranges::is_sorted(drawn, {}, &TraceRequest::timestamp_ms));
    // By root: input_tokens says which session it was.
    std::map<uint64_t, std::vector<const TraceRequest*>> copies;
    for (const TraceRequest& request : drawn) {
      EXPECT_EQ(request.block_ids[0], 0u) << "what all share stays shared";
      EXPECT_LE(request.timestamp_ms, 2100u) << "within the trace";
      EXPECT_GE(request.timestamp_ms, 10u);
      copies[request.block_ids[1]].push_back(&request);
    }
    ASSERT_EQ(copies.size(), 10u);
    std::set<uint64_t> sessions;
    std::set<uint64_t> ids;
    for (const auto& [root, requests] : copies) {
      ASSERT_EQ(requests.size(), 3u);
      const uint64_t session = requests[0]->input_tokens;
      const bool is_first = sessions.insert(session).second;
      some_twice = some_twice || !is_first;
      for (uint64_t turn = 0; turn < 3; ++turn) {
        EXPECT_EQ(requests[turn]->input_tokens, session);
        EXPECT_EQ(requests[turn]->output_tokens, turn);
        EXPECT_EQ(requests[turn]->timestamp_ms - requests[0]->timestamp_ms, turn * 1000);
        ASSERT_EQ(requests[turn]->block_ids.size(), 2 + turn);
      }
      for (size_t block = 1; block < 4; ++block) {
        EXPECT_TRUE(ids.insert(requests[2]->block_ids[block]).second) << "copies share nothing";
      }
      const std::vector<uint64_t>& earlier = requests[1]->block_ids;
      EXPECT_TRUE(std::equal(earlier.begin(), earlier.end(), requests[2]->block_ids.begin()));
    }
  }
  EXPECT_TRUE(some_twice);
}

TEST(Resample, TheSeedDecidesAlone) {
  const Trace trace = TenSessions();
  EXPECT_TRUE(Equal(Resample(trace, 5, 0).value(), Resample(trace, 5, 0).value()));
  EXPECT_FALSE(Equal(Resample(trace, 5, 0).value(), Resample(trace, 6, 0).value()));
  EXPECT_EQ(Resample(trace, 5, 4)->size(), 12u);
  EXPECT_TRUE(Resample({}, 5, 0)->empty());
}

TEST(Resample, DrawsNoMoreThanATraceMayHold) {
  const auto drawn = Resample(TenSessions(), 1, uint64_t{1} << 40);
  ASSERT_FALSE(drawn.has_value());
  EXPECT_EQ(drawn.error().code, ErrorCode::kTooLarge);
}

}  // namespace
}  // namespace quire::app
