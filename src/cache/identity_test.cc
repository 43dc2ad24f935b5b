// What keys are hashes of, byte by byte: blocks in a store are found again by them, in another
// process and by another build.
#include "quire/identity.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "base/hash.h"
#include "cache/below/records.h"
#include "cache/test_util.h"
#include "quire/attention_types.h"

namespace quire::cache {
namespace {

// Numbers from their low byte on; texts behind their length.
class Bytes {
 public:
  template <typename Number>
  Bytes& Add(Number number) {
    auto value = static_cast<uint64_t>(number);
    for (size_t i = 0; i < sizeof(Number); ++i, value >>= 8) {
      bytes_.push_back(static_cast<std::byte>(value));
    }
    return *this;
  }
  Bytes& Text(std::string_view text) {
    Add(uint64_t{text.size()});
    for (const char c : text) Add(c);
    return *this;
  }
  Bytes& Raw(const Digest& digest) {
    for (const uint8_t byte : digest) Add(byte);
    return *this;
  }
  Bytes& Of(const Geometry& geometry) {
    Add(uint64_t{geometry.groups.size()});
    for (const LayerGroup& group : geometry.groups) {
      Add(group.kind).Add(group.window_tokens).Add(group.sink_tokens);
      Add(uint64_t{group.layers.size()});
      for (const uint32_t layer : group.layers) Add(layer);
      Add(uint64_t{group.streams.size()});
      for (const Stream& stream : group.streams) Add(stream.role).Add(stream.heads).Add(stream.dim);
    }
    return *this;
  }
  Bytes& Of(const NumericProfile& profile) {
    Add(profile.block_tokens).Add(profile.residual_tokens).Add(profile.open_dtype);
    Add(uint64_t{profile.codecs.size()});
    for (const CodecRule& rule : profile.codecs) Add(rule.role).Add(rule.codec);
    Add(kSplitTokens).Add(kLanes).Add(profile.compute);
    return Text(profile.arithmetic).Add(profile.kernel_revision);
  }

  Digest Hash(const Digest& secret) const {
    Blake2b<32> hasher(secret);
    hasher.Update(bytes_);
    return hasher.Finish();
  }
  Digest Hash() const {
    Blake2b<32> hasher;
    hasher.Update(bytes_);
    return hasher.Finish();
  }

 private:
  std::vector<std::byte> bytes_;
};

constexpr uint32_t kVersion = 1;

Geometry TwoGroups() {
  Geometry geometry = Geometry::Uniform(/*layers=*/3, /*kv_heads=*/2, /*dim=*/8);
  geometry.groups.push_back({.kind = LayerKind::kWindow,
                             .layers = {3, 4},
                             .window_tokens = 100,
                             .sink_tokens = 4,
                             .streams = geometry.groups[0].streams});
  return geometry;
}

TEST(Identity, ARootKeyIsAHashOfEverything) {
  const Identity identity = {.weights = {1, 2, 3},
                             .adapter = "lora",
                             .adapter_version = 5,
                             .position_encoding = "rope:theta=10000",
                             .domain = {.name = "house", .secret = {9, 8}, .erase_epoch = 7}};
  NumericProfile profile = NumericProfile::Uniform(Codec::kInt8, 32);
  profile.residual_tokens = 64;
  const Bytes bytes = Bytes()
                          .Text("quire root")
                          .Add(kVersion)
                          .Raw(identity.weights)
                          .Text("lora")
                          .Add(uint64_t{5})
                          .Text("rope:theta=10000")
                          .Text("house")
                          .Add(uint64_t{7})
                          .Of(TwoGroups())
                          .Of(profile);
  EXPECT_EQ(RootKey(identity, TwoGroups(), profile), bytes.Hash(identity.domain.secret));
}

TEST(Identity, ABlocksKeyIsAHashOfItsTokensAndTheKeyBefore) {
  const Domain domain = {.name = "house", .secret = {9, 8}};
  const Digest parent = {4, 5, 6};
  const auto tokens = SomeTokens(16, 1);
  Bytes bytes;
  bytes.Text("quire block").Raw(parent).Add(uint32_t{16});
  for (const TokenId token : tokens) bytes.Add(token);
  EXPECT_EQ(ChildKey(domain, parent, tokens.data(), 16), bytes.Hash(domain.secret));
}

TEST(Identity, WhatRecordsSayOfTheirShapes) {
  const NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
  EXPECT_EQ(ProfileFingerprint(profile),
            Bytes().Text("quire profile").Add(kVersion).Of(profile).Hash());
  EXPECT_EQ(GeometryFingerprint(TwoGroups()),
            Bytes().Text("quire geometry").Add(kVersion).Of(TwoGroups()).Hash());
  const Digest key = {1, 2, 3};
  EXPECT_EQ(TwinKey(key), Bytes().Text("quire twin").Raw(key).Hash());
  EXPECT_EQ(RunKey(key), Bytes().Text("quire run").Raw(key).Hash());
  EXPECT_EQ(RunEntryKey(key), Bytes().Text("quire run entry").Raw(key).Hash());
}

}  // namespace
}  // namespace quire::cache
