#include "tier/secret.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "base/hash.h"
#include "base/log.h"
#include "env/file.h"

namespace quire::tier {
namespace {

constexpr std::string_view kSecretName = "SECRET";
constexpr std::string_view kDigestName = "SECRET.digest";

constexpr size_t kDigestTextBytes = 2 * sizeof(Digest) + 10;

// Of 32 random bytes a digest tells nothing. Its checksum tells damage of its file from another
// secret.
std::string DigestText(std::span<const std::byte> secret) {
  Blake2b<32> hash;
  hash.Update(std::as_bytes(std::span(std::string_view("quire store secret"))));
  hash.Update(secret);
  const std::string digest = ToHex(hash.Finish());
  return fmt::format("{} {:08x}\n", digest, Crc32c(std::as_bytes(std::span(digest))));
}

// Whether this is the digest of some secret.
bool IsDigestText(std::string_view text) {
  if (text.size() != kDigestTextBytes) return false;
  const std::string_view digest = text.substr(0, 2 * sizeof(Digest));
  return text.substr(digest.size()) ==
         fmt::format(" {:08x}\n", Crc32c(std::as_bytes(std::span(digest))));
}

// The digest is no use without its secret, so it is written after it, and may be missing.
void KeepDigest(const std::string& path, const std::string& digest) {
  const auto written = WriteFile(path, digest, FileReaders::kOwner);
  if (!written) LogWarn("{}", written.error().message);
}

}  // namespace

Result<Digest> KeepSecret(const std::string& directory) {
  const std::string path = fmt::format("{}/{}", directory, kSecretName);
  const std::string digest_path = fmt::format("{}/{}", directory, kDigestName);
  const auto fail = [&](std::string_view what, std::string_view obstacle) {
    return Fail(ErrorCode::kCorrupt,
                fmt::format("{}: {}; put the file back, or remove {}/{}: then nothing that is in "
                            "the store is found any more",
                            path, what, directory, obstacle));
  };
  Digest secret{};
  const auto bytes = std::as_writable_bytes(std::span(secret));
  const auto known = ReadFile(path, secret.size());
  const auto digest = ReadFile(digest_path, kDigestTextBytes);
  const bool has_digest = digest && IsDigestText(*digest);
  if (known && known->size() == secret.size()) {
    std::ranges::copy(std::as_bytes(std::span(*known)), bytes.begin());
    if (has_digest && *digest != DigestText(bytes)) {
      return fail("not the secret that the store was made with", kDigestName);
    }
    if (!has_digest) KeepDigest(digest_path, DigestText(bytes));
    return secret;
  }
  if (known || known.error().code == ErrorCode::kCorrupt) {
    return fail(fmt::format("{} bytes are expected", secret.size()), kSecretName);
  }
  if (known.error().code != ErrorCode::kNotFound) return std::unexpected(known.error());
  if (has_digest) return fail("the secret of this store is gone", kDigestName);
  FillRandom(secret);
  QUIRE_TRY(WriteFile(path, {reinterpret_cast<const char*>(secret.data()), secret.size()},
                      FileReaders::kOwner));
  KeepDigest(digest_path, DigestText(bytes));
  return secret;
}

bool SecretChanged(Files& files, const std::string& directory) {
  const auto read = [&](std::string_view name, size_t bytes) -> std::optional<std::string> {
    const auto file = files.Open(fmt::format("{}/{}", directory, name), {.read_only = true});
    if (!file) return file.error().code == ErrorCode::kNotFound ? std::optional("") : std::nullopt;
    std::string text(bytes + 1, '\0');
    const auto got = files.ReadAt(*file, 0, std::as_writable_bytes(std::span(text)));
    files.Close(*file);
    if (!got) return std::nullopt;
    text.resize(*got);
    return text;
  };
  const auto digest = read(kDigestName, kDigestTextBytes);
  const auto secret = read(kSecretName, sizeof(Digest));
  if (!digest || !secret || !IsDigestText(*digest)) return false;
  return *digest != DigestText(std::as_bytes(std::span(*secret)));
}

}  // namespace quire::tier
