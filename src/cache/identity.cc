#include "quire/identity.h"

#include <span>
#include <string_view>

#include "base/hash.h"
#include "cache/below/records.h"

namespace quire {

namespace {

// Raised when the list of hashed fields or their order changes.
constexpr uint32_t kIdentityVersion = 1;

using Hasher = Blake2b<32>;

void AddText(Hasher& hasher, std::string_view text) {
  hasher.UpdateNumber(uint64_t{text.size()});
  hasher.Update(text);
}

void AddGeometry(Hasher& hasher, const Geometry& geometry) {
  hasher.UpdateNumber(uint64_t{geometry.groups.size()});
  for (const LayerGroup& group : geometry.groups) {
    hasher.UpdateNumber(group.kind);
    hasher.UpdateNumber(group.window_tokens);
    hasher.UpdateNumber(group.sink_tokens);
    hasher.UpdateNumber(uint64_t{group.layers.size()});
    for (uint32_t layer : group.layers) hasher.UpdateNumber(layer);
    hasher.UpdateNumber(uint64_t{group.streams.size()});
    for (const Stream& stream : group.streams) {
      hasher.UpdateNumber(stream.role);
      hasher.UpdateNumber(stream.heads);
      hasher.UpdateNumber(stream.dim);
    }
  }
}

void AddProfile(Hasher& hasher, const NumericProfile& profile) {
  hasher.UpdateNumber(profile.block_tokens);
  hasher.UpdateNumber(profile.residual_tokens);
  hasher.UpdateNumber(profile.open_dtype);
  hasher.UpdateNumber(uint64_t{profile.codecs.size()});
  for (const CodecRule& rule : profile.codecs) {
    hasher.UpdateNumber(rule.role);
    hasher.UpdateNumber(rule.codec);
  }
  if (profile.has_ladder()) {
    hasher.UpdateNumber(profile.store_codec ? static_cast<uint8_t>(*profile.store_codec) : 0);
  }
  hasher.UpdateNumber(kSplitTokens);
  hasher.UpdateNumber(kLanes);
  hasher.UpdateNumber(profile.compute);
  AddText(hasher, profile.arithmetic);
  hasher.UpdateNumber(profile.kernel_revision);
}

}  // namespace

Digest RootKey(const Identity& identity, const Geometry& geometry, const NumericProfile& profile) {
  Hasher hasher(identity.domain.secret);
  AddText(hasher, "quire root");
  hasher.UpdateNumber(kIdentityVersion);
  hasher.Update(std::as_bytes(std::span(identity.weights)));
  AddText(hasher, identity.adapter);
  hasher.UpdateNumber(identity.adapter_version);
  AddText(hasher, identity.position_encoding);
  AddText(hasher, identity.domain.name);
  hasher.UpdateNumber(identity.domain.erase_epoch);
  AddGeometry(hasher, geometry);
  AddProfile(hasher, profile);
  return hasher.Finish();
}

Digest ChildKey(const Domain& domain, const Digest& parent, const TokenId* tokens,
                uint32_t token_count) {
  Hasher hasher(domain.secret);
  AddText(hasher, "quire block");
  hasher.Update(std::as_bytes(std::span(parent)));
  hasher.UpdateNumber(token_count);
  hasher.Update(std::as_bytes(std::span(tokens, token_count)));
  return hasher.Finish();
}

namespace cache {
namespace {

Hasher HasherOf(std::string_view kind) {
  Hasher hasher;
  AddText(hasher, kind);
  hasher.UpdateNumber(kIdentityVersion);
  return hasher;
}

// The block's key is keyed by the domain's secret, so this key is as hard to guess.
Digest KeyBeside(std::string_view what, const Digest& block_key) {
  Hasher hasher;
  AddText(hasher, what);
  hasher.Update(std::as_bytes(std::span(block_key)));
  return hasher.Finish();
}

}  // namespace

Digest ProfileFingerprint(const NumericProfile& profile) {
  Hasher hasher = HasherOf("quire profile");
  AddProfile(hasher, profile);
  return hasher.Finish();
}

Digest GeometryFingerprint(const Geometry& geometry) {
  Hasher hasher = HasherOf("quire geometry");
  AddGeometry(hasher, geometry);
  return hasher.Finish();
}

Digest TwinKey(const Digest& block_key) { return KeyBeside("quire twin", block_key); }
Digest RunKey(const Digest& last_block_key) { return KeyBeside("quire run", last_block_key); }
Digest RunEntryKey(const Digest& block_key) { return KeyBeside("quire run entry", block_key); }

}  // namespace cache
}  // namespace quire
