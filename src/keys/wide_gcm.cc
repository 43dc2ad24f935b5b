#include "keys/wide_gcm.h"

#include <fmt/format.h>
#include <intel-ipsec-mb.h>

#include "base/wiped_vector.h"
#include "env/dynamic_library.h"

namespace quire::keys {

Result<const IMB_MGR*> LoadIpsecMb(const char* name) {
  // The library uses wide AES where it finds all of kWide. Without it, it is as OpenSSL is.
  constexpr uint64_t kWide = IMB_CPUFLAGS_AVX512_T2;
  if (!__builtin_cpu_supports("vaes") || !__builtin_cpu_supports("vpclmulqdq") ||
      !__builtin_cpu_supports("avx512f")) {
    return Fail(ErrorCode::kUnsupported, "the processor has no AES in vectors of 512 bits");
  }
  QUIRE_ASSIGN(const DynamicLibrary library, DynamicLibrary::Load(name, "libipsec-mb1"));
  decltype(&::alloc_mb_mgr) allocate = nullptr;
  decltype(&::init_mb_mgr_auto) begin = nullptr;
  decltype(&::free_mb_mgr) release = nullptr;
  decltype(&::imb_get_errno) error = nullptr;
  QUIRE_TRY(library.Find("alloc_mb_mgr", allocate));
  QUIRE_TRY(library.Find("init_mb_mgr_auto", begin));
  QUIRE_TRY(library.Find("free_mb_mgr", release));
  QUIRE_TRY(library.Find("imb_get_errno", error));
  std::unique_ptr<IMB_MGR, decltype(release)> manager(allocate(0), release);
  if (manager == nullptr) return Fail(ErrorCode::kUnsupported, fmt::format("{}: no memory", name));
  begin(manager.get(), nullptr);
  if (error(manager.get()) != 0) {
    return Fail(ErrorCode::kUnsupported, fmt::format("{}: its self-test failed", name));
  }
  if ((manager->features & kWide) != kWide) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("{}: the processor lacks what its wide AES needs", name));
  }
  return manager.release();  // for as long as the process
}

namespace {

// Those of its functions that are used here change nothing in the manager.
const Result<const IMB_MGR*>& Loaded() {
  static const Result<const IMB_MGR*> loaded = LoadIpsecMb("libIPSec_MB.so.1");
  return loaded;
}

class IpsecGcm final : public WideGcm {
 public:
  IpsecGcm(const IMB_MGR& library, KeyBytes key) : library_(library) {
    IMB_AES256_GCM_PRE(&library_, key.data(), &key_);
  }
  ~IpsecGcm() override {
    Wipe(std::span(&key_, 1));
    Wipe(std::span(&message_, 1));
  }
  IpsecGcm(const IpsecGcm&) = delete;
  IpsecGcm& operator=(const IpsecGcm&) = delete;

  void Begin(const Nonce& nonce, std::span<const std::byte> with, bool closes) override {
    // It refuses a null pointer, also where there are no bytes.
    const std::byte* const there = with.empty() ? nonce.data() : with.data();
    closes_ = closes;
    IMB_AES256_GCM_INIT(&library_, &key_, &message_, Bytes(nonce.data()), Bytes(there),
                        with.size());
  }

  void Update(std::span<const std::byte> from, std::byte* to) override {
    if (from.empty()) return;
    auto* const out = reinterpret_cast<uint8_t*>(to);
    if (closes_) {
      IMB_AES256_GCM_ENC_UPDATE(&library_, &key_, &message_, out, Bytes(from.data()), from.size());
    } else {
      IMB_AES256_GCM_DEC_UPDATE(&library_, &key_, &message_, out, Bytes(from.data()), from.size());
    }
  }

  Tag End() override {
    Tag tag{};
    auto* const out = reinterpret_cast<uint8_t*>(tag.data());
    if (closes_) {
      IMB_AES256_GCM_ENC_FINALIZE(&library_, &key_, &message_, out, tag.size());
    } else {
      IMB_AES256_GCM_DEC_FINALIZE(&library_, &key_, &message_, out, tag.size());
    }
    return tag;
  }

 private:
  static const uint8_t* Bytes(const std::byte* bytes) {
    return reinterpret_cast<const uint8_t*>(bytes);
  }

  const IMB_MGR& library_;
  alignas(64) gcm_key_data key_;
  gcm_context_data message_{};
  bool closes_ = false;
};

}  // namespace

Result<void> WideGcm::IsAvailable() {
  if (!Loaded()) return std::unexpected(Loaded().error());
  return {};
}

std::unique_ptr<WideGcm> WideGcm::Create(KeyBytes key) {
  if (!Loaded()) return nullptr;
  return std::make_unique<IpsecGcm>(**Loaded(), key);
}

}  // namespace quire::keys
