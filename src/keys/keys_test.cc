#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/log.h"
#include "base/prng.h"
#include "base/thread.h"
#include "env/clock.h"
#include "env/faulty_files.h"
#include "env/file.h"
#include "keys/cipher.h"
#include "keys/command.h"
#include "keys/key_ring.h"
#include "keys/key_source.h"
#include "keys/key_table.h"
#include "keys/secret_key.h"
#include "keys/wide_gcm.h"

namespace quire::keys {
namespace {

using testing::HasSubstr;

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

StoreKeys Key(uint8_t number) { return {.key = std::vector<uint8_t>(kKeyBytes, number)}; }

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "quire_keys_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  std::string Write(const std::string& name, std::string_view text, mode_t mode) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// OpenSSL's, and the wide one where it is there.
std::vector<std::unique_ptr<Cipher>> CiphersOf(KeyBytes key) {
  std::vector<std::unique_ptr<Cipher>> ciphers;
  ciphers.push_back(std::make_unique<Cipher>(key, nullptr));
  if (WideGcm::IsAvailable()) ciphers.push_back(std::make_unique<Cipher>(key));
  return ciphers;
}

// NIST's test vector for AES-256-GCM with this key, and no bytes authenticated besides.
TEST(Cipher, GivesTheBytesOfTheStandard) {
  const std::array<uint8_t, kKeyBytes> zero{};
  for (const auto& cipher : CiphersOf(zero)) {
    std::vector<std::byte> out(16 + kTagBytes);
    cipher->Close(0, {}, std::vector<std::byte>(16), out.data());
    EXPECT_EQ(ToHex({reinterpret_cast<const uint8_t*>(out.data()), out.size()}),
              "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919");
  }
}

TEST(Cipher, PiecesAreAsTheWhole) {
  const SecretKey key = SecretKey::Random();
  for (const auto& cipher : CiphersOf(key.bytes())) {
    std::vector<std::byte> plain(1000, std::byte{5});
    std::vector<std::byte> whole(plain.size() + kTagBytes);
    cipher->Close(3, Bytes("with"), plain, whole.data());
    std::vector<std::byte> parts(plain.size());
    cipher->BeginClose(3, Bytes("with"));
    for (size_t at = 0; at < plain.size(); at += 7) {
      const size_t bytes = std::min<size_t>(7, plain.size() - at);
      cipher->Update(std::span<const std::byte>(plain).subspan(at, bytes), &parts[at]);
    }
    const Tag tag = cipher->EndClose();
    EXPECT_TRUE(std::ranges::equal(parts, std::span(whole).first(plain.size())));
    EXPECT_TRUE(std::ranges::equal(tag, std::span(whole).last(kTagBytes)));
    cipher->BeginOpen(3, Bytes("with"));
    cipher->Update(parts, parts.data());
    EXPECT_TRUE(cipher->EndOpen(tag));
    EXPECT_EQ(parts, plain);
    for (const uint32_t nonce : {2, 3}) {
      auto sealed = whole;
      EXPECT_EQ(cipher->Open(nonce, Bytes("with"), sealed), nonce == 3);
      sealed = whole;
      EXPECT_FALSE(cipher->Open(nonce, Bytes("wits"), sealed));
    }
  }
}

// What comes of the bytes in pieces of at most `max`, each in its own memory.
std::vector<std::byte> InPieces(Cipher& cipher, std::span<const std::byte> from, size_t max,
                                Prng& draws) {
  std::vector<std::byte> to(from.size());
  for (size_t at = 0; at < from.size();) {
    const size_t bytes = std::min<size_t>(from.size() - at, 1 + draws.NextBelow(max));
    cipher.Update(from.subspan(at, bytes), &to[at]);
    at += bytes;
  }
  return to;
}

// Lengths around blocks of one vector and of several. Whatever one of them sealed, in one piece or
// in many, the others open, in pieces and in place, and none opens it changed.
TEST(Cipher, OneOpensWhatAnotherSealed) {
  const SecretKey key = SecretKey::Random();
  const auto ciphers = CiphersOf(key.bytes());
  Prng draws(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::byte> plain(draws.NextBelow(round % 3 == 0 ? 70'000 : 1'100));
    for (std::byte& byte : plain) byte = static_cast<std::byte>(draws.NextBelow(256));
    const auto with = std::span(plain).first(std::min<size_t>(plain.size(), draws.NextBelow(40)));
    const auto nonce = static_cast<uint32_t>(draws.NextBelow(1'000'000));
    const size_t piece = round % 2 == 0 ? 40 : 5'000;
    std::vector<std::byte> sealed(plain.size() + kTagBytes);
    ciphers[0]->Close(nonce, with, plain, sealed.data());
    const auto bytes = std::span(sealed).first(plain.size());
    Tag tag{};
    std::ranges::copy(std::span(sealed).last(kTagBytes), tag.begin());
    for (const auto& cipher : ciphers) {
      SCOPED_TRACE(testing::Message() << plain.size() << " bytes, " << (&cipher - ciphers.data()));
      cipher->BeginClose(nonce, with);
      ASSERT_TRUE(std::ranges::equal(InPieces(*cipher, plain, piece, draws), bytes));
      ASSERT_EQ(cipher->EndClose(), tag);
      cipher->BeginOpen(nonce, with);
      ASSERT_EQ(InPieces(*cipher, bytes, piece, draws), plain);
      ASSERT_TRUE(cipher->EndOpen(tag));
      std::vector<std::byte> whole = sealed;
      ASSERT_TRUE(cipher->Open(nonce, with, whole));
      ASSERT_TRUE(std::ranges::equal(std::span(whole).first(plain.size()), plain));
      whole = sealed;
      whole[draws.NextBelow(whole.size())] ^= std::byte{16};
      ASSERT_FALSE(cipher->Open(nonce, with, whole));
      whole = sealed;
      ASSERT_FALSE(cipher->Open(nonce + 1, with, whole));
      whole = sealed;
      ASSERT_FALSE(cipher->Open(nonce, Bytes("others"), whole));
    }
  }
}

TEST(Cipher, AMissingLibraryOrFunctionIsNamed) {
  for (const char* name : {"libIPSec_MB.so.none", "libc.so.6"}) {
    const auto loaded = LoadIpsecMb(name);
    ASSERT_FALSE(loaded.has_value());
    EXPECT_EQ(loaded.error().code, ErrorCode::kUnsupported);
    const std::string& said = loaded.error().message;
    if (said.starts_with("the processor has no AES")) GTEST_SKIP() << said;
    EXPECT_THAT(said, HasSubstr(name));
    EXPECT_THAT(said, HasSubstr("install the package libipsec-mb1"));
  }
}

TEST(Cipher, ABoxOpensOnlyAsItWasClosed) {
  const SecretKey key = SecretKey::Random();
  std::vector<std::byte> box(5 + kBoxBytes);
  CloseBox(key.bytes(), Bytes("with"), Bytes("plain"), box);
  std::vector<std::byte> again(box.size());
  CloseBox(key.bytes(), Bytes("with"), Bytes("plain"), again);
  EXPECT_NE(box, again);
  std::vector<std::byte> out(5);
  EXPECT_TRUE(OpenBox(key.bytes(), Bytes("with"), box, out));
  EXPECT_TRUE(std::ranges::equal(out, Bytes("plain")));
  EXPECT_FALSE(OpenBox(key.bytes(), Bytes("wits"), box, out));
  EXPECT_EQ(out, std::vector<std::byte>(5));
  EXPECT_FALSE(OpenBox(SecretKey::Random().bytes(), Bytes("with"), box, out));
  for (size_t at = 0; at < box.size(); ++at) {
    auto changed = box;
    changed[at] ^= std::byte{1};
    EXPECT_FALSE(OpenBox(key.bytes(), Bytes("with"), changed, out)) << at;
  }
}

TEST(Cipher, NamesGoBack) {
  const SecretKey key = SecretKey::Random();
  std::vector<uint8_t> ids(16 * 100);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint8_t>(i / 16);
  std::vector<uint8_t> names(ids.size());
  Disguise(key.bytes(), ids, names);
  EXPECT_NE(names, ids);
  std::vector<uint8_t> back(ids.size());
  Reveal(key.bytes(), names, back);
  EXPECT_EQ(back, ids);
}

// Of the page of a key the kernel says that it is not dumped.
TEST(SecretKey, ItsPageIsNotDumped) {
  const SecretKey key = SecretKey::Random();
  const auto address = reinterpret_cast<uintptr_t>(key.bytes().data());
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  std::string flags;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = begin <= address && address < end;
    }
    if (inside && line.starts_with("VmFlags:")) flags = line;
  }
  EXPECT_THAT(flags, HasSubstr(" dd"));
}

TEST(SecretKey, ItIsOverwrittenWhenItGoes) {
  const uint8_t* where = nullptr;
  {
    const SecretKey key = SecretKey::Random();
    where = key.bytes().data();
    EXPECT_NE(std::ranges::count(key.bytes(), 0), 32);
  }
  EXPECT_EQ(std::count(where, where + kKeyBytes, 0), 32);
}

TEST(KeySource, ReadsKeyFilesOfOneReader) {
  const Folder folder;
  const std::string raw(kKeyBytes, 'k');
  const std::string hex = ToHex({reinterpret_cast<const uint8_t*>(raw.data()), raw.size()}) + "\n";
  const auto one = OpenKeySource({.file = folder.Write("raw", raw, 0600)});
  const auto two = OpenKeySource({.file = folder.Write("hex", hex, 0400)});
  ASSERT_TRUE(one && two);
  EXPECT_EQ((*one)->id(), (*two)->id());
  EXPECT_NE((*one)->id(), KeyId{});
  const auto wrapped = (*one)->Wrap(Bytes("secret"));
  ASSERT_TRUE(wrapped);
  std::vector<std::byte> secret(6);
  EXPECT_TRUE((*two)->Unwrap(*wrapped, secret));
  EXPECT_TRUE(std::ranges::equal(secret, Bytes("secret")));

  const auto refused = [&](const std::string& path) {
    const auto source = OpenKeySource({.file = path});
    return source ? "" : source.error().message;
  };
  EXPECT_THAT(refused(folder.Write("open", raw, 0640)),
              HasSubstr("others than its owner may use this key (mode 0640): chmod 600"));
  EXPECT_THAT(refused(folder.Write("short", "key", 0600)), HasSubstr("no key: 32 bytes"));
  EXPECT_THAT(refused(folder.path() + "/none"), HasSubstr("none"));
}

TEST(KeySource, ACommandWrapsAndUnwraps) {
  const Folder folder;
  // Of a service that keeps what it wraps by a name.
  const std::string script =
      folder.Write("kms",
                   "#!/bin/sh\n"
                   "cd \"$(dirname \"$0\")\"\n"
                   "case $1 in\n"
                   "wrap) cat > kept; echo name-of-it ;;\n"
                   "unwrap) read name; [ $name = name-of-it ] && cat kept ;;\n"
                   "esac\n",
                   0700);
  const auto source = OpenKeySource({.command = script});
  ASSERT_TRUE(source);
  std::vector<std::byte> secret(64, std::byte{0xAB});
  const auto wrapped = (*source)->Wrap(secret);
  ASSERT_TRUE(wrapped) << wrapped.error().message;
  EXPECT_TRUE(std::ranges::equal(*wrapped, Bytes("name-of-it\n")));
  std::vector<std::byte> again(64);
  ASSERT_TRUE((*source)->Unwrap(*wrapped, again));
  EXPECT_EQ(again, secret);
  const auto other = (*source)->Unwrap(Bytes("other\n"), again);
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message, HasSubstr("ended with status 1"));
}

TEST(KeySource, ACommandThatFailsIsNamedWithItsStatus) {
  for (const auto& [command, says] :
       {std::pair("false", "`false wrap`: it ended with status 1"),
        std::pair("/no/such/program", "`/no/such/program wrap`: it ended with status 127"),
        std::pair("echo", "hexadecimal digits")}) {
    const auto source = OpenKeySource({.command = command});
    ASSERT_TRUE(source);
    const auto wrapped = (*source)->Wrap(std::vector<std::byte>(64));
    ASSERT_FALSE(wrapped);
    EXPECT_THAT(wrapped.error().message, HasSubstr(says));
  }
  StartThread([] {
    const auto ended = RunCommand("kill -TERM $$; sleep 60", "", 10, 10'000'000);
    ASSERT_FALSE(ended.has_value());
    EXPECT_NE(ended.error().message.find("signal"), std::string::npos) << ended.error().message;
  }).join();
  const auto late = RunCommand("sleep 60", "", 10, 50'000);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kDeadline);
  const auto much = RunCommand("yes", "", 10, 10'000'000);
  ASSERT_FALSE(much);
  EXPECT_THAT(much.error().message, HasSubstr("more than 10 bytes"));
  const auto said = RunCommand("exec 0<&-; echo it", std::string(1000, 'x'), 10, 10'000'000);
  ASSERT_TRUE(said);
  EXPECT_EQ(*said, "it\n");
}

KeyTable SomeTable() {
  KeyTable table = {.version = 7, .kind = WrapKind::kCommand, .next_number = 9};
  table.wrapped = {std::byte{1}, std::byte{2}, std::byte{3}};
  table.keys.push_back({.owner = {4}, .number = 5, .until = 6});
  table.keys.push_back({.owner = {4}, .number = 8, .until = 0});
  return table;
}

TEST(KeyTable, ComesBackAndEachChangedByteIsFound) {
  const KeyTable table = SomeTable();
  std::vector<std::byte> bytes = EncodeKeys(table);
  const auto read = DecodeKeys(bytes);
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, table);
  for (size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] ^= std::byte{0x10};
    EXPECT_FALSE(DecodeKeys(bytes)) << at;
    bytes[at] ^= std::byte{0x10};
    EXPECT_FALSE(DecodeKeys(std::span(bytes).first(at))) << at;
  }
}

class KeyRingTest : public testing::Test {
 protected:
  KeyRingTest() { EXPECT_TRUE(files_.MakeDirectory("d")); }
  ~KeyRingTest() override { SetLogLevel(LogLevel::kWarn); }
  std::unique_ptr<KeyRing> Open(const StoreKeys& keys, uint64_t keys_max = 10) {
    auto ring = KeyRing::Open(files_, {.directory = "d", .keys_max = keys_max}, keys);
    EXPECT_TRUE(ring) << ring.error().message;
    return *std::move(ring);
  }

  ManualClock clock_;
  FaultyFiles files_{{.seed = 3}, clock_};
};

TEST_F(KeyRingTest, KeysAreDurableWhenTheyAreGiven) {
  const OwnerId anna = {1};
  auto ring = Open(Key(7));
  const auto key = ring->KeyFor(anna);
  ASSERT_TRUE(key);
  EXPECT_EQ(ring->KeyFor(anna)->number, key->number);
  const std::vector<uint8_t> bytes(key->key->bytes().begin(), key->key->bytes().end());
  const Digest secret = ring->domain_secret();
  ring.reset();
  files_.LosePower();
  files_.Restart();
  ring = Open(Key(7));
  const auto found = ring->Find(anna, key->number);
  ASSERT_NE(found, nullptr);
  EXPECT_TRUE(std::ranges::equal(found->bytes(), bytes));
  EXPECT_EQ(ring->domain_secret(), secret);
  EXPECT_EQ(ring->Find({2}, key->number), nullptr);
  EXPECT_EQ(ring->Find(anna, key->number + 1), nullptr);
}

TEST_F(KeyRingTest, ADestroyedKeyIsInNoFile) {
  const OwnerId anna = {1};
  auto ring = Open(Key(7));
  for (uint8_t owner = 1; owner < 5; ++owner) ASSERT_TRUE(ring->KeyFor({owner}));
  const auto wrapped = ReadKeys(files_, "d").newest()->keys.front().wrapped;
  const auto on_disk = [&] {
    return std::ranges::any_of(files_.Paths(), [&](const std::string& path) {
      return !std::ranges::search(*files_.Contents(path), wrapped).empty();
    });
  };
  EXPECT_TRUE(on_disk());
  ASSERT_TRUE(ring->Destroy(anna));
  EXPECT_FALSE(on_disk());
  EXPECT_FALSE(ring->Has(anna));
  ring = Open(Key(7));
  EXPECT_FALSE(ring->Has(anna));
  EXPECT_TRUE(ring->Has({2}));
  // A number is given once.
  EXPECT_EQ(ring->KeyFor(anna)->number, 5);
}

TEST_F(KeyRingTest, TheFormerKeyOfTheCallerOpensNothingThatIsKeptAfterwards) {
  auto ring = Open(Key(7));
  ASSERT_TRUE(ring->KeyFor({1}));
  const KeyTable before = *ReadKeys(files_, "d").newest();
  ASSERT_TRUE(ring->Rewrap(Key(8)));
  const KeyTable after = *ReadKeys(files_, "d").newest();
  EXPECT_NE(after.id, before.id);
  EXPECT_NE(after.keys[0].wrapped, before.keys[0].wrapped);
  // What the former key unwraps does not fit the data keys of now.
  KeyTable mixed = after;
  mixed.id = before.id;
  mixed.check = before.check;
  mixed.wrapped = before.wrapped;
  mixed.version += 1;
  for (size_t copy = 0; copy < 2; ++copy) ASSERT_TRUE(WriteKeys(files_, "d", copy, mixed));
  SetLogLevel(LogLevel::kOff);
  ring = Open(Key(7));
  EXPECT_FALSE(ring->Has({1}));
}

TEST_F(KeyRingTest, AKeyThatIsNotItsOwnersIsNone) {
  auto ring = Open(Key(7));
  ASSERT_TRUE(ring->KeyFor({1}));
  ASSERT_TRUE(ring->KeyFor({2}));
  KeyTable table = *ReadKeys(files_, "d").newest();
  std::swap(table.keys[0].wrapped, table.keys[1].wrapped);
  for (size_t copy = 0; copy < 2; ++copy) ASSERT_TRUE(WriteKeys(files_, "d", copy, table));
  SetLogLevel(LogLevel::kOff);
  ring = Open(Key(7));
  EXPECT_EQ(ring->keys(), 0);
}

TEST_F(KeyRingTest, AtMostSoManyKeys) {
  auto ring = Open(Key(7), 2);
  ASSERT_TRUE(ring->KeyFor({1}));
  ASSERT_TRUE(ring->KeyFor({2}));
  const auto third = ring->KeyFor({3});
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, ErrorCode::kNoSpace);
  ASSERT_TRUE(ring->Destroy({1}));
  EXPECT_TRUE(ring->KeyFor({3}));
}

TEST_F(KeyRingTest, ACrashWhileTheyAreMadeLeavesNoneOrAll) {
  SetLogLevel(LogLevel::kOff);
  bool stopped = true;
  for (uint64_t stop = 1; stopped; ++stop) {
    for (const std::string& path : files_.Paths()) ASSERT_TRUE(files_.Remove(path));
    files_.StopAfter(stop);
    const auto made = KeyRing::Open(files_, {.directory = "d"}, Key(7));
    stopped = files_.stopped();
    files_.LosePower();
    files_.Restart();
    files_.StopAfter(~uint64_t{0});
    EXPECT_EQ(made.has_value(), !stopped);
    EXPECT_TRUE(Open(Key(7))->KeyFor({1}));
  }
}

TEST_F(KeyRingTest, WhatCannotBeWrittenIsNotGiven) {
  SetLogLevel(LogLevel::kOff);
  auto ring = Open(Key(7));
  ASSERT_TRUE(ring->KeyFor({9}));
  files_.Obstruct("d/KEYS-1");
  EXPECT_FALSE(ring->KeyFor({1}));
  EXPECT_FALSE(ring->is_saved());
  EXPECT_TRUE(ring->KeyFor({9}));  // which was kept before
  files_.MendDisk();
  EXPECT_TRUE(ring->KeyFor({1}));
  EXPECT_TRUE(ring->is_saved());
}

}  // namespace
}  // namespace quire::keys
