// AES-256-GCM in vectors of several blocks (VAES), by libipsec-mb, which has it three times as fast
// as OpenSSL 3.0. The library is loaded when it is first needed, and nothing needs it: without it,
// or on a processor without these instructions, OpenSSL does the same (keys/cipher.h).
#ifndef QUIRE_KEYS_WIDE_GCM_H_
#define QUIRE_KEYS_WIDE_GCM_H_

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "keys/secret_key.h"
#include "quire/error.h"

struct IMB_MGR;

namespace quire::keys {

/// The functions of libipsec-mb, which has this name, where the processor has all that they need.
/// They are never given back.
///
/// Errors:  kUnsupported the library or the processor lacks something; says what
/// Threads: any
Result<const IMB_MGR*> LoadIpsecMb(const char* name);

inline constexpr size_t kTagBytes = 16;
using Tag = std::array<std::byte, kTagBytes>;
using Nonce = std::array<std::byte, 12>;

/// Sealing and opening under one key: a beginning, the bytes in their order, an end.
///
/// Threads: one at a time
class WideGcm {
 public:
  virtual ~WideGcm() = default;

  /// Errors:  kUnsupported the library or the processor has none; says which
  /// Threads: any
  static Result<void> IsAvailable();
  /// Null where it is not available. Throws std::bad_alloc.
  static std::unique_ptr<WideGcm> Create(KeyBytes key);

  virtual void Begin(const Nonce& nonce, std::span<const std::byte> with, bool closes) = 0;
  /// `to` may be where the bytes are.
  virtual void Update(std::span<const std::byte> from, std::byte* to) = 0;
  virtual Tag End() = 0;
};

}  // namespace quire::keys

#endif  // QUIRE_KEYS_WIDE_GCM_H_
