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

// Of 32 random bytes this tells nothing.
std::string DigestOf(std::span<const std::byte> secret) {
  Blake2b<32> hash;
  hash.Update(std::as_bytes(std::span(std::string_view("quire store secret"))));
  hash.Update(secret);
  return ToHex(hash.Finish()) + "\n";
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
  const auto digest = ReadFile(digest_path, 2 * secret.size() + 1);
  if (known && known->size() == secret.size()) {
    std::ranges::copy(std::as_bytes(std::span(*known)), bytes.begin());
    if (digest && *digest != DigestOf(bytes)) {
      return fail("not the secret that the store was made with", kDigestName);
    }
    if (!digest) KeepDigest(digest_path, DigestOf(bytes));
    return secret;
  }
  if (known || known.error().code == ErrorCode::kCorrupt) {
    return fail(fmt::format("{} bytes are expected", secret.size()), kSecretName);
  }
  if (known.error().code != ErrorCode::kNotFound) return std::unexpected(known.error());
  if (digest) return fail("the secret of this store is gone", kDigestName);
  FillRandom(secret);
  QUIRE_TRY(WriteFile(path, {reinterpret_cast<const char*>(secret.data()), secret.size()},
                      FileReaders::kOwner));
  KeepDigest(digest_path, DigestOf(bytes));
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
  const auto digest = read(kDigestName, 2 * sizeof(Digest) + 1);
  const auto secret = read(kSecretName, sizeof(Digest));
  if (!digest || digest->empty() || !secret) return false;
  return *digest != DigestOf(std::as_bytes(std::span(*secret)));
}

}  // namespace quire::tier
