// The secret of a store: 32 random bytes beside its records, and a digest of them that tells when
// they are others.
#ifndef QUIRE_TIER_SECRET_H_
#define QUIRE_TIER_SECRET_H_

#include <string>

#include "env/files.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire::tier {

/// The secret that a directory has; where it has none one is made and kept, for its owner alone to
/// read.
///
/// Errors: kCorrupt the file is not the one that was made with the store; kNoSpace; kIo
Result<Digest> KeepSecret(const std::string& directory);

/// Whether the secret is another one than the store was made with, or gone. Changes nothing; what
/// cannot be read has not changed.
bool SecretChanged(Files& files, const std::string& directory);

}  // namespace quire::tier

#endif  // QUIRE_TIER_SECRET_H_
