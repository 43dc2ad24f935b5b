#include "serve/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/hash.h"

namespace quire::serve {

bool IsAdapterName(std::string_view name) {
  const auto fits = [](char each) {
    return (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') ||
           (each >= '0' && each <= '9') || each == '_' || each == '-' || each == '.' || each == '/';
  };
  return !name.empty() && name.size() <= kAdapterNameBytesMax && std::ranges::all_of(name, fits);
}

Identity AdapterIdentity(const Identity& base, std::string_view name, const Digest& digest) {
  Blake2b<32> weights;
  weights.Update("quire adapter of");
  weights.Update(std::as_bytes(std::span(base.weights)));
  weights.Update(std::as_bytes(std::span(digest)));
  Identity identity = base;
  identity.weights = weights.Finish();
  identity.adapter = name;
  std::memcpy(&identity.adapter_version, digest.data(), sizeof(identity.adapter_version));
  return identity;
}

Result<std::shared_ptr<const ServedAdapter>> AdapterTable::Load(const std::string& name,
                                                                const std::string& directory) {
  const auto refused = [&](ErrorCode code, std::string_view why) {
    return Fail(code, fmt::format("adapter '{}': {}", name, why));
  };
  if (!IsAdapterName(name)) {
    return refused(ErrorCode::kInvalidArgument,
                   "a name has 1 to 64 of A-Z, a-z, 0-9, '_', '-', '.' and '/'");
  }
  if (!supported_) {
    return refused(ErrorCode::kUnsupported, "devices compute no adapters; use the processor");
  }
  MutexLock loading(loading_);
  if (Find(name)) return refused(ErrorCode::kBusy, "it is loaded; unload it first");
  if (count() >= limits_.count_max) {
    return refused(ErrorCode::kNoSpace,
                   fmt::format("there are {}, as many as may be", limits_.count_max));
  }
  auto loaded = model::Adapter::Load(directory, model_,
                                     limits_.bytes_max - std::min(limits_.bytes_max, bytes()));
  if (!loaded) return refused(loaded.error().code, loaded.error().message);
  const uint64_t adapter_bytes = (*loaded)->bytes();
  *bytes_ += adapter_bytes;
  const auto give_back = [adapter_bytes, total = bytes_](const ServedAdapter* served) {
    delete served;
    *total -= adapter_bytes;
  };
  Identity identity = AdapterIdentity(base_, name, (*loaded)->digest());
  std::shared_ptr<const ServedAdapter> served(
      new ServedAdapter{
          .name = name, .adapter = *std::move(loaded), .identity = std::move(identity)},
      give_back);
  MutexLock lock(mutex_);
  adapters_.emplace(name, served);
  return served;
}

Result<void> AdapterTable::Unload(std::string_view name) {
  std::shared_ptr<const ServedAdapter> last;  // ends without the lock
  MutexLock lock(mutex_);
  const auto found = adapters_.find(name);
  if (found == adapters_.end()) {
    return Fail(ErrorCode::kNotFound, fmt::format("adapter '{}': it is not loaded", name));
  }
  last = std::move(found->second);
  adapters_.erase(found);
  return {};
}

Result<std::shared_ptr<const ServedAdapter>> AdapterTable::Find(std::string_view name) const {
  MutexLock lock(mutex_);
  const auto found = adapters_.find(name);
  if (found == adapters_.end()) {
    return Fail(ErrorCode::kNotFound, fmt::format("adapter '{}': it is not loaded", name));
  }
  return found->second;
}

std::vector<std::shared_ptr<const ServedAdapter>> AdapterTable::All() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<const ServedAdapter>> all;
  for (const auto& [name, adapter] : adapters_) all.push_back(adapter);
  return all;
}

uint32_t AdapterTable::count() const {
  MutexLock lock(mutex_);
  return static_cast<uint32_t>(adapters_.size());
}

}  // namespace quire::serve
