// The codec part of quire/identity.h.
#include <fmt/format.h>

#include "quire/error.h"
#include "quire/identity.h"

namespace quire {

NumericProfile NumericProfile::Uniform(Codec codec, uint32_t block_tokens) {
  NumericProfile profile;
  profile.block_tokens = block_tokens;
  profile.open_dtype = codec;
  for (const StreamRole role : {StreamRole::kKey, StreamRole::kValue, StreamRole::kLatent}) {
    profile.codecs.push_back({.role = role, .codec = codec});
  }
  return profile;
}

Result<Codec> NumericProfile::CodecFor(StreamRole role) const {
  for (const CodecRule& rule : codecs) {
    if (rule.role == role) return rule.codec;
  }
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("profile: no codec rule covers stream role {} ({} rules)",
                          static_cast<int>(role), codecs.size()));
}

}  // namespace quire
