#include "remote/address.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <utility>

#include "env/file.h"

namespace quire::remote {
namespace {

constexpr uint16_t kRedisPort = 6379;
constexpr uint64_t kCredentialsBytesMax = 64 << 10;

std::unexpected<Error> Bad(std::string_view what) {
  return Fail(ErrorCode::kInvalidArgument, fmt::format("--remote: {}", what));
}

/// Takes what is before the separator off; all of it where there is none.
std::string_view TakeBefore(std::string_view& rest, char separator) {
  const size_t end = rest.find(separator);
  const std::string_view before = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return before;
}

bool AreAll(std::string_view text, std::string_view besides) {
  return std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           besides.find(c) != std::string_view::npos;
  });
}

Result<HostAndPort> ParseHost(std::string_view text) {
  HostAndPort host{.port = kRedisPort};
  std::string_view port;
  if (text.starts_with('[')) {  // an IPv6 address
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return Bad(fmt::format("'{}' has no ]", text));
    host.host = text.substr(1, end - 1);
    port = text.substr(end + 1);
    if (!port.empty() && !port.starts_with(':')) return Bad(fmt::format("'{}' is no host", text));
    if (!port.empty()) port.remove_prefix(1);
  } else {
    host.host = TakeBefore(text, ':');
    port = text;
  }
  if (host.host.empty() || !AreAll(host.host, ".-_:%")) {
    return Bad(fmt::format("'{}' is no host", host.host));
  }
  if (port.empty()) return host;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), host.port);
  if (error != std::errc() || end != port.data() + port.size() || host.port == 0) {
    return Bad(fmt::format("'{}' is no port", port));
  }
  return host;
}

Result<void> TakePrefix(std::string_view text, RemoteAddress& address) {
  while (text.ends_with('/')) text.remove_suffix(1);
  // No character that a service, a shell or a pattern would read as something else.
  if (!AreAll(text, "._/-") || text.size() > 200) {
    return Bad(fmt::format("prefix '{}': letters, digits and . _ - / alone, at most 200", text));
  }
  address.prefix = text;
  return {};
}

Result<void> TakeTimeout(std::string_view text, RemoteAddress& address) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || !(seconds >= 0.1) ||
      seconds > 600) {
    return Bad(fmt::format("timeout: '{}' is no number of seconds from 0.1 to 600", text));
  }
  address.request_us = static_cast<uint64_t>(seconds * 1e6);
  return {};
}

Result<void> TakeOption(std::string_view name, std::string_view value, RemoteAddress& address) {
  const bool is_s3 = address.kind == RemoteKind::kS3;
  if (name == "ca") {
    address.ca_file = value;
  } else if (name == "timeout") {
    return TakeTimeout(value, address);
  } else if (is_s3 && name == "region" && AreAll(value, "-")) {
    address.region = value;
  } else if (is_s3 && name == "style" && (value == "path" || value == "virtual")) {
    address.path_style = value == "path";
  } else if (is_s3 && name == "endpoint") {
    while (value.ends_with('/')) value.remove_suffix(1);
    std::string_view host = value;
    address.tls = host.starts_with("https://");
    if (!address.tls && !host.starts_with("http://")) return Bad("endpoint=http://... or https://");
    host.remove_prefix(address.tls ? 8 : 7);
    if (host.empty() || !AreAll(host, ".-:[]")) {
      return Bad(fmt::format("endpoint: '{}' is no host", host));
    }
    address.endpoint = value;
  } else {
    return Bad(fmt::format("unknown option '{}={}'", name, value));
  }
  return {};
}

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

Result<void> ReadAwsFile(RemoteCredentials& credentials) {
  std::string path = Environment("AWS_SHARED_CREDENTIALS_FILE");
  if (path.empty()) path = Environment("HOME") + "/.aws/credentials";
  const std::string named = Environment("AWS_PROFILE");
  const std::string profile = fmt::format("[{}]", named.empty() ? "default" : named);
  const auto file = ReadFile(path, kCredentialsBytesMax);
  if (!file) {
    return Fail(ErrorCode::kNotFound,
                fmt::format("--remote s3: no key: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                            "or put them into a file ({})",
                            file.error().message));
  }
  bool is_it = false;
  for (std::string_view rest = *file; !rest.empty();) {
    std::string_view line = Trim(TakeBefore(rest, '\n'));
    if (line.starts_with('[')) is_it = line == profile;
    if (!is_it) continue;
    const std::string_view name = Trim(TakeBefore(line, '='));
    if (name == "aws_access_key_id") credentials.s3_key_id = Trim(line);
    if (name == "aws_secret_access_key") credentials.s3_secret = Trim(line);
    if (name == "aws_session_token") credentials.s3_session_token = Trim(line);
  }
  if (!credentials.s3_key_id.empty() && !credentials.s3_secret.empty()) return {};
  return Fail(ErrorCode::kNotFound, fmt::format("{}: no key in {}", path, profile));
}

}  // namespace

Result<RemoteAddress> ParseRemote(std::string_view text) {
  RemoteAddress address;
  const size_t scheme_end = text.find("://");
  const std::string_view scheme = text.substr(0, std::min(scheme_end, text.size()));
  if (scheme_end == std::string_view::npos ||
      (scheme != "redis" && scheme != "rediss" && scheme != "s3")) {
    return Bad("redis://HOST, rediss://HOST or s3://BUCKET is expected");
  }
  std::string_view query = text.substr(scheme_end + 3);
  std::string_view path = TakeBefore(query, '?');
  std::string_view authority = TakeBefore(path, '/');
  if (scheme == "s3") {
    address.kind = RemoteKind::kS3;
    address.tls = true;
    address.bucket = authority;
    if (address.bucket.size() < 3 || !AreAll(address.bucket, ".-")) {
      return Bad(fmt::format("'{}' is no bucket", address.bucket));
    }
  } else {
    address.tls = scheme == "rediss";
    if (const size_t at = authority.rfind('@'); at != std::string_view::npos) {
      address.user = authority.substr(0, at);
      authority.remove_prefix(at + 1);
      if (address.user.find(':') != std::string::npos) {
        return Bad(
            "a password in the address can be seen by others: set QUIRE_REDIS_PASSWORD, or "
            "QUIRE_REDIS_PASSWORD_FILE");
      }
    }
    while (!authority.empty()) {
      QUIRE_ASSIGN(HostAndPort host, ParseHost(TakeBefore(authority, ',')));
      address.hosts.push_back(std::move(host));
    }
    if (address.hosts.empty()) return Bad("no host");
  }
  QUIRE_TRY(TakePrefix(path, address));
  // A service of one's own has no names of buckets in its domain, most of the time.
  if (query.find("endpoint=") != std::string_view::npos) address.path_style = true;
  while (!query.empty()) {
    std::string_view option = TakeBefore(query, '&');
    const std::string_view name = TakeBefore(option, '=');
    QUIRE_TRY(TakeOption(name, option, address));
  }
  return address;
}

std::string Describe(const RemoteAddress& address) {
  std::string text;
  if (address.kind == RemoteKind::kS3) {
    text = "s3://" + address.bucket;
  } else {
    text = address.tls ? "rediss://" : "redis://";
    for (const HostAndPort& host : address.hosts) {
      if (&host != &address.hosts.front()) text += ",";
      text += fmt::format("{}:{}", host.host, host.port);
    }
  }
  if (!address.prefix.empty()) text += "/" + address.prefix;
  if (!address.endpoint.empty()) text += fmt::format(" at {}", address.endpoint);
  return text;
}

Result<RemoteCredentials> CredentialsFor(const RemoteAddress& address) {
  RemoteCredentials credentials;
  if (address.kind == RemoteKind::kRedis) {
    credentials.redis_password = Environment("QUIRE_REDIS_PASSWORD");
    const std::string path = Environment("QUIRE_REDIS_PASSWORD_FILE");
    if (credentials.redis_password.empty() && !path.empty()) {
      QUIRE_ASSIGN(const std::string file, ReadFile(path, kCredentialsBytesMax));
      credentials.redis_password = Trim(file);
    }
    if (!address.user.empty() && credentials.redis_password.empty()) {
      return Fail(ErrorCode::kNotFound,
                  fmt::format("--remote: no password for {}: set QUIRE_REDIS_PASSWORD, or "
                              "QUIRE_REDIS_PASSWORD_FILE",
                              address.user));
    }
    return credentials;
  }
  credentials.s3_key_id = Environment("AWS_ACCESS_KEY_ID");
  credentials.s3_secret = Environment("AWS_SECRET_ACCESS_KEY");
  credentials.s3_session_token = Environment("AWS_SESSION_TOKEN");
  if (credentials.s3_key_id.empty() || credentials.s3_secret.empty()) {
    QUIRE_TRY(ReadAwsFile(credentials));
  }
  return credentials;
}

}  // namespace quire::remote
