#include "cache/fallback.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/log.h"
#include "codec/slot_layout.h"
#include "quire/attention.h"

namespace quire::cache {
namespace {

constexpr Codec kFallbacks[] = {Codec::kInt8, Codec::kF16};

std::string_view StreamName(StreamRole role) {
  switch (role) {
    case StreamRole::kKey: return "K";
    case StreamRole::kValue: return "V";
    case StreamRole::kLatent: return "latent";
  }
  return "unknown";
}

/// Whether blocks with this codec in one stream, and f16 in the others, can be laid out and read.
Result<void> Check(const CacheOptions& options, StreamRole role, Codec codec) {
  NumericProfile profile = options.profile;
  for (CodecRule& rule : profile.codecs) rule.codec = rule.role == role ? codec : Codec::kF16;
  QUIRE_ASSIGN(const auto sealed,
               codec::SlotLayout::Create(options.geometry, profile, options.layout));
  // Codecs that store values as they are have no open form of their own.
  auto open = sealed;
  if (!sealed.identity()) {
    QUIRE_ASSIGN(open, codec::SlotLayout::CreateOpen(options.geometry, profile));
  }
  for (uint32_t layer = 0; layer < options.geometry.layer_count(); ++layer) {
    QUIRE_TRY(options.fallback_kernels->Supports({.query_heads = sealed.key(layer).heads,
                                                  .key = sealed.key(layer),
                                                  .value = sealed.value(layer),
                                                  .open_key = open.key(layer),
                                                  .open_value = open.value(layer),
                                                  .open_blocks = profile.residual_blocks(),
                                                  .scale = 1.0f}));
  }
  return {};
}

/// Blocks that are stored as written have one form, open and sealed.
void UniteForms(NumericProfile& profile) {
  const Codec first = profile.codecs.front().codec;
  const bool one = std::ranges::all_of(profile.codecs,
                                       [&](const CodecRule& rule) { return rule.codec == first; });
  if (one && IsIdentity(first)) profile.open_dtype = first;
}

}  // namespace

uint32_t ApplyFallback(CacheOptions& options) {
  std::vector<StreamRole> roles;
  for (const LayerGroup& group : options.geometry.groups) {
    for (const Stream& stream : group.streams) roles.push_back(stream.role);
  }
  std::vector<std::string> changes;
  NumericProfile profile = options.profile;
  for (CodecRule& rule : profile.codecs) {
    const Codec wanted = rule.codec;
    if (IsIdentity(wanted) || std::ranges::count(roles, rule.role) == 0) continue;
    const Result<void> usable = Check(options, rule.role, wanted);
    if (usable) continue;
    for (const Codec codec : kFallbacks) {
      if (codec == wanted || !Check(options, rule.role, codec)) continue;
      changes.push_back(fmt::format("{} in {} instead of {} ({})", StreamName(rule.role),
                                    CodecName(codec), CodecName(wanted), usable.error().message));
      rule.codec = codec;
      break;
    }
  }
  if (changes.empty()) return 0;
  const auto replaced = static_cast<uint32_t>(changes.size());
  const bool encodes = std::ranges::any_of(profile.codecs, [&](const CodecRule& rule) {
    return !IsIdentity(rule.codec) && std::ranges::count(roles, rule.role) > 0;
  });
  if (!encodes && profile.residual_tokens != 0) {
    changes.push_back(profile.has_ladder()
                          ? std::string("no precision ladder (nothing is encoded)")
                          : fmt::format("residual_tokens 0 instead of {} (nothing is encoded)",
                                        profile.residual_tokens));
    profile.residual_tokens = 0;
    profile.store_codec.reset();
  }
  LogWarn("codec fallback: {}", fmt::join(changes, "; "));
  UniteForms(profile);
  options.profile = std::move(profile);
  return replaced;
}

}  // namespace quire::cache
