#include "remote/s3.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread.h"
#include "remote/libcurl.h"
#include "remote/object_queue.h"
#include "remote/s3_xml.h"

namespace quire::remote {
namespace {

constexpr size_t kUnderWayMax = 32;
constexpr long kConnectMs = 1500;
constexpr long kRequestMs = 10'000;        // at least
constexpr long kSentBytes = 512 << 10;     // at once
constexpr long kReceivedBytes = 64 << 10;  // they stay in the cache until a sink has them
constexpr int kPollMs = 200;
constexpr uint64_t kTextBytesMax = 4 << 20;  // of what is no object: lists, errors

/// What is the same in all requests.
struct Bucket {
  std::string url{};     // that names come behind; ends with a slash
  std::string list{};    // of the bucket itself
  std::string prefix{};  // of names; empty, or ends with a slash
  std::string signing{};
  std::string user{};     // key and secret
  std::string session{};  // a header; empty: none
  std::string ca_file{};
  long request_ms = 0;  // of one try
};

/// One request under way.
struct Call {
  ObjectRequest request{};
  std::vector<std::byte> got{};  // what goes to no sink
  uint64_t got_max = 0;
  uint64_t sunk = 0;  // bytes of the object that came so far, for a sink
  bool too_large = false;
  size_t sent = 0;
  std::string etag{};
  const Libcurl* curl = nullptr;
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
};

bool IsGood(long status) { return status == 200 || status == 204 || status == 206; }

// A service that does not know ranges gives all of an object.
uint64_t SkippedOf(const ObjectRequest& request, long status) {
  return !request.whole && status == 200 ? request.offset : 0;
}

// False: it is longer than it can be.
bool Sink(Call& call, long status, std::span<const std::byte> bytes) {
  const ObjectRequest& request = call.request;
  const uint64_t begin = SkippedOf(request, status);
  const uint64_t end = begin + request.bytes_max;
  const uint64_t at = std::exchange(call.sunk, call.sunk + bytes.size());
  if (request.whole && call.sunk > end) return false;
  const uint64_t from = std::clamp(begin, at, call.sunk);
  const uint64_t to = std::clamp(end, from, call.sunk);
  if (from < to) request.sink(bytes.subspan(from - at, to - from));
  return true;
}

size_t OnBody(char* data, size_t, size_t bytes, void* user) {
  Call& call = *static_cast<Call*>(user);
  if (call.request.sink) {
    long status = 0;
    call.curl->easy_getinfo(call.easy, CURLINFO_RESPONSE_CODE, &status);
    if (IsGood(status)) {
      call.too_large = !Sink(call, status, std::as_bytes(std::span(data, bytes)));
      return call.too_large ? 0 : bytes;
    }
  }
  if (call.got.size() + bytes > call.got_max) {
    call.too_large = true;
    return 0;
  }
  const auto* const from = reinterpret_cast<const std::byte*>(data);
  call.got.insert(call.got.end(), from, from + bytes);
  return bytes;
}

size_t OnHeader(char* data, size_t, size_t bytes, void* user) {
  Call& call = *static_cast<Call*>(user);
  std::string_view line(data, bytes);
  constexpr std::string_view kEtag = "etag:";
  const bool is_it =
      line.size() > kEtag.size() && std::equal(kEtag.begin(), kEtag.end(), line.begin(),
                                               [](char a, char b) { return a == (b | 0x20); });
  if (is_it) {
    line.remove_prefix(kEtag.size());
    while (!line.empty() && (line.front() == ' ')) line.remove_prefix(1);
    while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.remove_suffix(1);
    call.etag = line;
  }
  return bytes;
}

size_t OnSend(char* to, size_t, size_t bytes_max, void* user) {
  Call& call = *static_cast<Call*>(user);
  const size_t bytes = std::min(bytes_max, call.request.bytes.size() - call.sent);
  std::memcpy(to, call.request.bytes.data() + call.sent, bytes);
  call.sent += bytes;
  return bytes;
}

// A connection that was kept and is gone by now: the body is sent once more.
int OnRewind(void* user, curl_off_t offset, int /*origin*/) {
  static_cast<Call*>(user)->sent = static_cast<size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

ObjectOutcome OutcomeOf(long status, std::string_view code) {
  switch (status) {
    case 200:
    case 204:
    case 206: return ObjectOutcome::kOk;
    case 404: return code == "NoSuchBucket" ? ObjectOutcome::kRefused : ObjectOutcome::kAbsent;
    case 409:
    case 412: return ObjectOutcome::kChanged;
    case 416: return ObjectOutcome::kOk;  // the object ends before the range
    case 301:
    case 307:
    case 400:
    case 401:
    case 403:
      return code == "RequestTimeout" ? ObjectOutcome::kUnavailable : ObjectOutcome::kRefused;
    case 507: return ObjectOutcome::kFull;
    default: return ObjectOutcome::kUnavailable;
  }
}

/// What runs on the thread.
class S3Loop {
 public:
  S3Loop(const Libcurl& curl, Bucket bucket, ObjectQueue& queue)
      : curl_(curl), bucket_(std::move(bucket)), queue_(queue), multi_(curl_.multi_init()) {
    curl_.multi_setopt(multi_, CURLMOPT_MAXCONNECTS, long{2 * kUnderWayMax});
  }
  ~S3Loop() {
    for (auto& [easy, call] : calls_) {
      curl_.multi_remove_handle(multi_, easy);
      curl_.slist_free_all(call.headers);
      curl_.easy_cleanup(easy);
    }
    for (CURL* const easy : spare_) curl_.easy_cleanup(easy);
    curl_.multi_cleanup(multi_);
  }
  S3Loop(const S3Loop&) = delete;
  S3Loop& operator=(const S3Loop&) = delete;

  void Wake() { curl_.multi_wakeup(multi_); }
  void Run();

 private:
  void Begin(ObjectRequest request);
  void SetUp(Call& call);
  std::string UrlOf(const ObjectRequest& request) const;
  void End(CURL* easy, CURLcode result);
  ObjectReply ReplyOf(Call& call, long status);

  const Libcurl& curl_;
  const Bucket bucket_;
  ObjectQueue& queue_;
  CURLM* const multi_;
  std::map<CURL*, Call> calls_;
  std::vector<CURL*> spare_;
  std::deque<ObjectRequest> waiting_;
};

// Keys of a query in their order, and slashes in its values written so, or the signature is another
// one.
std::string S3Loop::UrlOf(const ObjectRequest& request) const {
  if (request.verb != ObjectVerb::kList) {
    return fmt::format("{}{}{}", bucket_.url, bucket_.prefix, request.name);
  }
  const auto encoded = [](std::string_view text) {
    std::string out;
    for (const char c : text) out += c == '/' ? "%2F" : std::string(1, c);
    return out;
  };
  std::string url = fmt::format("{}?list-type=2&max-keys={}&prefix={}", bucket_.list,
                                std::clamp<uint64_t>(request.bytes_max, 1, 1000),
                                encoded(bucket_.prefix + request.name));
  if (!request.version.empty()) {
    url += "&start-after=" + encoded(bucket_.prefix + request.version);
  }
  return url;
}

void S3Loop::SetUp(Call& call) {
  CURL* const easy = call.easy;
  const ObjectRequest& request = call.request;
  curl_.easy_setopt(easy, CURLOPT_URL, UrlOf(request).c_str());
  curl_.easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_.easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_.easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, kConnectMs);
  curl_.easy_setopt(easy, CURLOPT_TIMEOUT_MS, bucket_.request_ms);
  curl_.easy_setopt(easy, CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);  // to turn it off takes a header
  curl_.easy_setopt(easy, CURLOPT_BUFFERSIZE, kReceivedBytes);
  curl_.easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, kSentBytes);
  curl_.easy_setopt(easy, CURLOPT_AWS_SIGV4, bucket_.signing.c_str());
  curl_.easy_setopt(easy, CURLOPT_USERPWD, bucket_.user.c_str());
  if (!bucket_.ca_file.empty()) curl_.easy_setopt(easy, CURLOPT_CAINFO, bucket_.ca_file.c_str());
  curl_.easy_setopt(easy, CURLOPT_WRITEFUNCTION, &OnBody);
  curl_.easy_setopt(easy, CURLOPT_WRITEDATA, &call);
  curl_.easy_setopt(easy, CURLOPT_HEADERFUNCTION, &OnHeader);
  curl_.easy_setopt(easy, CURLOPT_HEADERDATA, &call);
  const auto header = [&](const std::string& text) {
    call.headers = curl_.slist_append(call.headers, text.c_str());
  };
  header("x-amz-content-sha256: UNSIGNED-PAYLOAD");
  if (!bucket_.session.empty()) header(bucket_.session);
  call.got_max = kTextBytesMax;
  switch (request.verb) {
    case ObjectVerb::kGet: {
      call.got_max = std::max(request.bytes_max, uint64_t{4096});  // an error is short
      if (request.whole) break;
      const uint64_t last = request.offset + request.bytes_max - 1;
      curl_.easy_setopt(easy, CURLOPT_RANGE, fmt::format("{}-{}", request.offset, last).c_str());
      break;
    }
    case ObjectVerb::kSwap:
      header(request.version.empty() ? "If-None-Match: *" : "If-Match: " + request.version);
      [[fallthrough]];
    case ObjectVerb::kPut:
      curl_.easy_setopt(easy, CURLOPT_UPLOAD, 1L);
      curl_.easy_setopt(easy, CURLOPT_INFILESIZE_LARGE,
                        static_cast<curl_off_t>(request.bytes.size()));
      curl_.easy_setopt(easy, CURLOPT_READFUNCTION, &OnSend);
      curl_.easy_setopt(easy, CURLOPT_READDATA, &call);
      curl_.easy_setopt(easy, CURLOPT_SEEKFUNCTION, &OnRewind);
      curl_.easy_setopt(easy, CURLOPT_SEEKDATA, &call);
      break;
    case ObjectVerb::kRemove: curl_.easy_setopt(easy, CURLOPT_CUSTOMREQUEST, "DELETE"); break;
    case ObjectVerb::kList: break;
  }
  curl_.easy_setopt(easy, CURLOPT_HTTPHEADER, call.headers);
}

void S3Loop::Begin(ObjectRequest request) {
  CURL* easy = nullptr;
  if (spare_.empty()) {
    easy = curl_.easy_init();
  } else {
    easy = spare_.back();
    spare_.pop_back();
    curl_.easy_reset(easy);
  }
  Call& call = calls_[easy];
  call.request = std::move(request);
  call.curl = &curl_;
  call.easy = easy;
  SetUp(call);
  curl_.multi_add_handle(multi_, easy);
}

ObjectReply S3Loop::ReplyOf(Call& call, long status) {
  ObjectRequest& request = call.request;
  const std::string_view text(reinterpret_cast<const char*>(call.got.data()), call.got.size());
  const std::string code(IsGood(status) ? std::string_view() : S3ErrorCode(text));
  const ObjectOutcome outcome = OutcomeOf(status, code);
  if (outcome == ObjectOutcome::kUnavailable || outcome == ObjectOutcome::kRefused ||
      outcome == ObjectOutcome::kFull) {
    return NotDone(std::move(request), outcome,
                   fmt::format("HTTP {}{}{}", status, code.empty() ? "" : " ", code));
  }
  ObjectReply reply{.tag = request.tag, .outcome = outcome};
  if (outcome != ObjectOutcome::kOk) return reply;
  if (request.verb == ObjectVerb::kList) {
    auto list = ParseS3List(text);
    if (!list) {
      return NotDone(std::move(request), ObjectOutcome::kUnavailable, "what it says is no list");
    }
    for (const std::string& key : list->keys) {
      if (key.starts_with(bucket_.prefix)) reply.names.push_back(key.substr(bucket_.prefix.size()));
    }
    if (list->truncated && !reply.names.empty()) reply.version = reply.names.back();
    return reply;
  }
  if (request.verb != ObjectVerb::kGet) return reply;
  if (status == 416) call.got.clear();
  const uint64_t skipped = std::min<uint64_t>(SkippedOf(request, status), call.got.size());
  call.got.erase(call.got.begin(), call.got.begin() + static_cast<ptrdiff_t>(skipped));
  if (call.got.size() > request.bytes_max) {
    if (request.whole) return {.tag = request.tag, .outcome = ObjectOutcome::kTooLarge};
    call.got.resize(request.bytes_max);
  }
  reply.bytes = std::move(call.got);
  if (request.wants_version) reply.version = std::move(call.etag);
  return reply;
}

void S3Loop::End(CURL* easy, CURLcode result) {
  long status = 0;
  curl_.easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  curl_.multi_remove_handle(multi_, easy);
  auto call = calls_.extract(easy);
  Call& ended = call.mapped();
  curl_.slist_free_all(ended.headers);
  spare_.push_back(easy);
  // Some (radosgw 16) compare an ETag with its quotes to their own without: it never is the same.
  std::string& version = ended.request.version;
  const bool is_quoted = version.size() > 1 && version.front() == '"' && version.back() == '"';
  if (result == CURLE_OK && status == 412 && ended.request.verb == ObjectVerb::kSwap && is_quoted) {
    version = version.substr(1, version.size() - 2);
    return Begin(std::move(ended.request));
  }
  if (ended.too_large) {
    queue_.Answer({.tag = ended.request.tag, .outcome = ObjectOutcome::kTooLarge});
  } else if (result != CURLE_OK) {
    const bool untrusted = result == CURLE_PEER_FAILED_VERIFICATION;
    queue_.Answer(NotDone(std::move(ended.request),
                          untrusted ? ObjectOutcome::kRefused : ObjectOutcome::kUnavailable,
                          curl_.easy_strerror(result)));
  } else {
    queue_.Answer(ReplyOf(ended, status));
  }
}

void S3Loop::Run() {
  while (!queue_.stops()) {
    for (ObjectRequest& request : queue_.TakeAsked()) waiting_.push_back(std::move(request));
    while (!waiting_.empty() && calls_.size() < kUnderWayMax) {
      Begin(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    int running = 0;
    curl_.multi_perform(multi_, &running);
    int left = 0;
    bool any = false;
    while (CURLMsg* const message = curl_.multi_info_read(multi_, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      End(message->easy_handle, message->data.result);
      any = true;
    }
    if (!any) curl_.multi_poll(multi_, nullptr, 0, kPollMs, nullptr);
  }
}

class S3Objects final : public Objects {
 public:
  S3Objects(const Libcurl& curl, std::string where, Bucket bucket)
      : where_(std::move(where)),
        loop_(curl, std::move(bucket), queue_),
        thread_(StartThread([this] { loop_.Run(); })) {}
  ~S3Objects() override {
    queue_.Stop();
    loop_.Wake();
    thread_.join();
  }

  void Ask(ObjectRequest request) override {
    queue_.Ask(std::move(request));
    loop_.Wake();
  }
  void Take(std::vector<ObjectReply>& replies, uint64_t wait_us) override {
    queue_.TakeAnswered(replies, wait_us);
  }
  std::string where() const override { return where_; }

 private:
  const std::string where_;
  ObjectQueue queue_;
  S3Loop loop_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Objects>> OpenS3(const RemoteAddress& address,
                                        const RemoteCredentials& credentials) {
  QUIRE_ASSIGN(const Libcurl* const curl, LoadLibcurl());
  std::string region = address.region;
  for (const char* const name : {"AWS_REGION", "AWS_DEFAULT_REGION"}) {
    const char* const value = std::getenv(name);
    if (region.empty() && value != nullptr) region = value;
  }
  if (region.empty()) {
    if (address.endpoint.empty()) {
      return Fail(ErrorCode::kInvalidArgument,
                  "--remote s3: no region: set AWS_REGION, or add ?region=NAME");
    }
    region = "us-east-1";  // what services of one place expect
  }
  Bucket bucket{.prefix = address.prefix.empty() ? "" : address.prefix + "/",
                .signing = fmt::format("aws:amz:{}:s3", region),
                .user = credentials.s3_key_id + ":" + credentials.s3_secret,
                .ca_file = address.ca_file,
                .request_ms = std::max(kRequestMs, static_cast<long>(address.request_us / 1000))};
  if (!credentials.s3_session_token.empty()) {
    bucket.session = "x-amz-security-token: " + credentials.s3_session_token;
  }
  const std::string endpoint = address.endpoint.empty()
                                   ? fmt::format("https://s3.{}.amazonaws.com", region)
                                   : address.endpoint;
  const size_t host = endpoint.find("://") + 3;
  bucket.url = address.path_style ? fmt::format("{}/{}/", endpoint, address.bucket)
                                  : fmt::format("{}{}.{}/", endpoint.substr(0, host),
                                                address.bucket, endpoint.substr(host));
  bucket.list = bucket.url.substr(0, bucket.url.size() - (address.path_style ? 1 : 0));
  return std::make_unique<S3Objects>(*curl, Describe(address), std::move(bucket));
}

}  // namespace quire::remote
