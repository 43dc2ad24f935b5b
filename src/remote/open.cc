#include "remote/open.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "remote/redis.h"
#include "remote/s3.h"

namespace quire::remote {
namespace {

constexpr uint64_t kFirstAnswerUs = 2'000'000;
constexpr uint64_t kFirstAnswerMostUs = 10'000'000;
constexpr uint64_t kS3RequestUs = 5'000'000;  // it is farther away, as a rule

void WarnOfKeyReaders(const std::string& path) {
  struct stat file{};
  if (stat(path.c_str(), &file) != 0 || (file.st_mode & (S_IRWXG | S_IRWXO)) == 0) return;
  LogWarn("{}: others than its owner may use the fleet's key: chmod 600", path);
}

uint64_t RandomSeed() {
  Digest random{};
  FillRandom(random);
  uint64_t seed = 0;
  std::memcpy(&seed, random.data(), sizeof(seed));
  return seed;
}

}  // namespace

Result<std::unique_ptr<Objects>> OpenObjects(const RemoteAddress& address) {
  QUIRE_ASSIGN(const RemoteCredentials credentials, CredentialsFor(address));
  if (address.kind == RemoteKind::kRedis) return OpenRedis(address, credentials);
  return OpenS3(address, credentials);
}

Result<OpenedRemote> OpenRemote(const RemoteRequest& request, const Clock& clock) {
  QUIRE_ASSIGN(const RemoteAddress address, ParseRemote(request.address));
  OpenedRemote opened{.is_fleet = !request.fleet_key_file.empty()};
  FleetKey key = request.own_secret;
  if (opened.is_fleet) {
    QUIRE_ASSIGN(key, ReadFleetKey(request.fleet_key_file));
    WarnOfKeyReaders(request.fleet_key_file);
  } else {
    LogWarn(
        "remote {}: no fleet key, so nothing is shared: what is written there is found by this {} "
        "alone (--fleet-key FILE, the same file on all machines)",
        Describe(address), request.outlives_process ? "store" : "process");
  }
  opened.domain_secret = FleetKeys(key).domain;
  QUIRE_ASSIGN(auto objects, OpenObjects(address));
  RemoteOptions options{.seed = RandomSeed()};
  if (address.kind == RemoteKind::kS3) options.request_us = kS3RequestUs;
  if (address.request_us != 0) options.request_us = address.request_us;
  opened.records = std::make_unique<RemoteRecords>(std::move(objects), key, options, clock);
  if (!opened.records->Await(std::clamp(address.request_us, kFirstAnswerUs, kFirstAnswerMostUs))) {
    LogWarn("remote {}: it does not answer; it is asked again later", Describe(address));
  }
  return opened;
}

}  // namespace quire::remote
