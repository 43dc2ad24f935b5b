// What a record is, fed to a hash: all of an identity and of a layout, in one order.
#ifndef QUIRE_TIER_RECORD_DIGEST_H_
#define QUIRE_TIER_RECORD_DIGEST_H_

#include <cstdint>
#include <span>

#include "base/hash.h"
#include "tier/record.h"

namespace quire::tier {

/// Number and meaning of the sections.
inline void UpdateSections(Blake2b<32>& hash, const RecordLayout& layout) {
  hash.UpdateNumber(uint64_t{layout.sections().size()});
  for (const SectionSpec& section : layout.sections()) {
    hash.UpdateNumber(section.group);
    hash.UpdateNumber(section.stream);
    hash.UpdateNumber(section.encoding);
    hash.UpdateNumber(section.layout_revision);
    hash.UpdateNumber(section.layer_first);
    hash.UpdateNumber(section.layer_count);
    hash.UpdateNumber(section.head_first);
    hash.UpdateNumber(section.head_count);
    hash.UpdateNumber(section.bytes);
  }
}

/// All of it, and the sections.
inline void UpdateRecord(Blake2b<32>& hash, const RecordIdentity& identity,
                         const RecordLayout& layout) {
  for (const Digest* digest :
       {&identity.key, &identity.parent, &identity.profile, &identity.geometry}) {
    hash.Update(std::as_bytes(std::span(*digest)));
  }
  hash.Update(std::as_bytes(std::span(identity.publisher)));
  hash.UpdateNumber(identity.erase_epoch);
  hash.UpdateNumber(identity.block_index);
  hash.UpdateNumber(uint64_t{identity.tokens.size()});
  hash.Update(std::as_bytes(identity.tokens));
  UpdateSections(hash, layout);
}

}  // namespace quire::tier

#endif  // QUIRE_TIER_RECORD_DIGEST_H_
