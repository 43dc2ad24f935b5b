// Where a remote is, and what opens it.
#ifndef QUIRE_REMOTE_ADDRESS_H_
#define QUIRE_REMOTE_ADDRESS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"

namespace quire::remote {

struct HostAndPort {
  std::string host{};
  uint16_t port = 0;

  auto operator<=>(const HostAndPort&) const = default;
};

enum class RemoteKind : uint8_t { kRedis = 1, kS3 = 2 };

struct RemoteAddress {
  RemoteKind kind = RemoteKind::kRedis;
  bool tls = false;
  std::string prefix{};     // of all names; no slash at its ends
  std::string ca_file{};    // of TLS; empty: the system's
  uint64_t request_us = 0;  // that a read or write may take with its retries; 0: as usual
  // Redis.
  std::vector<HostAndPort> hosts{};  // at least one
  std::string user{};                // empty: the default one
  // S3.
  std::string bucket{};
  std::string endpoint{};   // scheme, host and port; empty: of AWS, by region
  std::string region{};     // empty: what AWS_REGION says
  bool path_style = false;  // the bucket is in the path, not in the host
};

/// redis://[user@]host[:port][,host[:port]...][/prefix][?timeout=SECONDS&ca=FILE], rediss:// with
/// TLS; s3://bucket[/prefix][?endpoint=URL&region=R&style=path|virtual&timeout=SECONDS&ca=FILE].
///
/// Errors: kInvalidArgument what is wrong with it; a password in it is refused
Result<RemoteAddress> ParseRemote(std::string_view text);
/// The same without what need not be seen.
std::string Describe(const RemoteAddress& address);

/// What opens a remote. Never printed.
struct RemoteCredentials {
  std::string redis_password{};  // empty: none
  std::string s3_key_id{};
  std::string s3_secret{};
  std::string s3_session_token{};
};

/// From the environment: QUIRE_REDIS_PASSWORD, or the file that QUIRE_REDIS_PASSWORD_FILE names;
/// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the profile AWS_PROFILE
/// ("default") of the file that AWS_SHARED_CREDENTIALS_FILE names (~/.aws/credentials).
///
/// Errors: kNotFound S3 without a key, a file that is not there; kInvalidArgument
Result<RemoteCredentials> CredentialsFor(const RemoteAddress& address);

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_ADDRESS_H_
