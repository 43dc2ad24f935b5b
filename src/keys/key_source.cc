#include "keys/key_source.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "base/wiped_vector.h"
#include "env/file.h"
#include "keys/cipher.h"
#include "keys/command.h"

namespace quire::keys {
namespace {

constexpr std::string_view kWrapUse = "quire store keys";
constexpr uint64_t kCommandUs = 30'000'000;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// False: other digits, or another number of them.
bool FromHex(std::string_view text, std::span<uint8_t> out) {
  if (text.size() != 2 * out.size()) return false;
  for (size_t i = 0; i < out.size(); ++i) {
    const int high = HexDigit(text[2 * i]);
    const int low = HexDigit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<uint8_t>(16 * high + low);
  }
  return true;
}

std::string_view WithoutBlanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

Result<void> RefuseOtherReaders(const std::string& path) {
  struct stat file{};
  if (::stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return {};
  if ((file.st_mode & (S_IRWXG | S_IRWXO)) == 0) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: others than its owner may use this key (mode {:04o}): chmod 600",
                          path, file.st_mode & 07777));
}

class KeyOfCaller final : public KeySource {
 public:
  KeyOfCaller(const SecretKey& key, std::string name) : name_(std::move(name)) {
    Digest derived = Derive(key.bytes(), kWrapUse);
    std::ranges::copy(derived, key_.writable().begin());
    Wipe(std::span<uint8_t>(derived));
  }

  WrapKind kind() const override { return WrapKind::kKey; }
  KeyId id() const override {
    Blake2b<16> hash(key_.bytes());
    hash.Update("quire key id");
    const auto digest = hash.Finish();
    KeyId id{};
    std::copy_n(digest.begin(), id.size(), id.begin());
    return id;
  }
  std::string Describe() const override { return name_; }

  Result<std::vector<std::byte>> Wrap(std::span<const std::byte> secret) override {
    std::vector<std::byte> wrapped(secret.size() + kBoxBytes);
    CloseBox(key_.bytes(), {}, secret, wrapped);
    return wrapped;
  }
  Result<void> Unwrap(std::span<const std::byte> wrapped, std::span<std::byte> secret) override {
    const bool opened =
        wrapped.size() == secret.size() + kBoxBytes && OpenBox(key_.bytes(), {}, wrapped, secret);
    if (opened) return {};
    return Fail(ErrorCode::kInvalidArgument, fmt::format("{}: another key wrapped it", name_));
  }

 private:
  SecretKey key_;
  std::string name_;
};

class KeyOfCommand final : public KeySource {
 public:
  explicit KeyOfCommand(std::string command) : command_(std::move(command)) {}

  WrapKind kind() const override { return WrapKind::kCommand; }
  KeyId id() const override { return {}; }
  std::string Describe() const override { return fmt::format("`{}`", command_); }

  Result<std::vector<std::byte>> Wrap(std::span<const std::byte> secret) override {
    std::string text = ToHex({reinterpret_cast<const uint8_t*>(secret.data()), secret.size()});
    text += '\n';
    const auto said = RunCommand(command_ + " wrap", text, kWrappedBytesMax, kCommandUs);
    Wipe(std::span(text));
    if (!said) return std::unexpected(said.error());
    const auto bytes = std::as_bytes(std::span(*said));
    std::vector<std::byte> wrapped(bytes.begin(), bytes.end());
    // What cannot be unwrapped would be found out after the next start.
    WipedVector<std::byte> again(secret.size());
    QUIRE_TRY(Unwrap(wrapped, again));
    if (std::ranges::equal(again, secret)) return wrapped;
    return Fail(ErrorCode::kIo,
                fmt::format("`{} unwrap`: it does not give back what was wrapped", command_));
  }

  Result<void> Unwrap(std::span<const std::byte> wrapped, std::span<std::byte> secret) override {
    const std::string_view input(reinterpret_cast<const char*>(wrapped.data()), wrapped.size());
    auto said = RunCommand(command_ + " unwrap", input, 4 * secret.size(), kCommandUs);
    if (!said) return std::unexpected(said.error());
    const bool good =
        FromHex(WithoutBlanks(*said), {reinterpret_cast<uint8_t*>(secret.data()), secret.size()});
    Wipe(std::span(*said));
    if (good) return {};
    Wipe(secret);
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("`{} unwrap`: it does not write {} hexadecimal digits", command_,
                            2 * secret.size()));
  }

 private:
  std::string command_;
};

}  // namespace

Result<SecretKey> ReadKeyFile(const std::string& path, std::string_view what) {
  constexpr uint64_t kTextBytesMax = 2 * kKeyBytes + 2;
  QUIRE_ASSIGN(std::string text, ReadFile(path, kTextBytesMax));
  SecretKey key;
  bool good = text.size() == kKeyBytes;
  if (good) {
    std::memcpy(key.writable().data(), text.data(), kKeyBytes);
  } else {
    good = FromHex(WithoutBlanks(text), key.writable());
  }
  Wipe(std::span(text));
  if (good) return key;
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: no {}: 32 bytes or 64 hexadecimal digits are expected "
                          "(head -c 32 /dev/urandom > FILE makes one)",
                          path, what));
}

Result<std::unique_ptr<KeySource>> OpenKeySource(const StoreKeys& keys) {
  const int given =
      (keys.file.empty() ? 0 : 1) + (keys.command.empty() ? 0 : 1) + (keys.key.empty() ? 0 : 1);
  if (given != 1) {
    return Fail(ErrorCode::kInvalidArgument,
                "store: one of a key file, a key and a command for keys is to be given");
  }
  if (!keys.command.empty()) return std::make_unique<KeyOfCommand>(keys.command);
  if (!keys.file.empty()) {
    QUIRE_TRY(RefuseOtherReaders(keys.file));
    QUIRE_ASSIGN(const SecretKey key, ReadKeyFile(keys.file, "key"));
    return std::make_unique<KeyOfCaller>(key, keys.file);
  }
  if (keys.key.size() != kKeyBytes) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("store: a key of {} bytes; 32 are expected", keys.key.size()));
  }
  return std::make_unique<KeyOfCaller>(SecretKey::Copy(KeyBytes(keys.key.data(), kKeyBytes)),
                                       "the key that was given");
}

}  // namespace quire::keys
