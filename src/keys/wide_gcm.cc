#include "keys/wide_gcm.h"

#include <intel-ipsec-mb.h>

#include "base/wiped_vector.h"
#include "env/dynamic_library.h"

namespace quire::keys {
namespace {

// The library's functions are in its manager; those that are used here change nothing in it.
Result<const IMB_MGR*> Load() {
  QUIRE_ASSIGN(const DynamicLibrary library,
               DynamicLibrary::Load("libIPSec_MB.so.1", "libipsec-mb1"));
  decltype(&::alloc_mb_mgr) allocate = nullptr;
  decltype(&::init_mb_mgr_auto) begin = nullptr;
  decltype(&::imb_get_errno) error = nullptr;
  QUIRE_TRY(library.Find("alloc_mb_mgr", allocate));
  QUIRE_TRY(library.Find("init_mb_mgr_auto", begin));
  QUIRE_TRY(library.Find("imb_get_errno", error));
  IMB_MGR* const manager = allocate(0);  // for as long as the process
  if (manager == nullptr) return Fail(ErrorCode::kUnsupported, "libipsec-mb: no memory");
  begin(manager, nullptr);
  constexpr uint64_t kWide = IMB_FEATURE_AVX512_SKX | IMB_FEATURE_VAES | IMB_FEATURE_VPCLMULQDQ;
  if (error(manager) != 0 || (manager->features & kWide) != kWide) {
    return Fail(ErrorCode::kUnsupported, "libipsec-mb: this processor has no wide AES");
  }
  return manager;
}

const Result<const IMB_MGR*>& Loaded() {
  static const Result<const IMB_MGR*> loaded = Load();
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
    const void* const there = with.empty() ? nonce.data() : with.data();
    closes_ = closes;
    IMB_AES256_GCM_INIT(&library_, &key_, &message_, Bytes(nonce.data()),
                        static_cast<const uint8_t*>(there), with.size());
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
