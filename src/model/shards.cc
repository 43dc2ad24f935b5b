#include "model/shards.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>

#include "base/check.h"
#include "base/json.h"
#include "env/file.h"

namespace quire::model {
namespace {

constexpr uint64_t kIndexBytesMax = 16 << 20;  // of 405 billion parameters: below one

std::unexpected<Error> Bad(const std::string& path, std::string_view tensor, std::string_view why) {
  return Fail(ErrorCode::kCorrupt, fmt::format("{}: tensor {}: {}", path, tensor, why));
}

// A file beside the index, and nothing that leads elsewhere.
bool IsPlainName(std::string_view name) {
  constexpr std::string_view kForbidden("/\\\0", 3);
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(kForbidden) == std::string_view::npos;
}

// File of every tensor. metadata.total_size is not looked at: released indices have wrong ones, and
// every file's own header says what it must hold.
Result<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  QUIRE_ASSIGN(const std::string text, ReadFile(path, kIndexBytesMax));
  QUIRE_ASSIGN(const Json index, ParseJson(text, path));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object() || map->empty()) {
    return Fail(ErrorCode::kCorrupt,
                fmt::format("{}: field weight_map must be an object with a tensor", path));
  }
  if (const std::optional<std::string> name = FirstDuplicateKey(text)) {
    return Fail(ErrorCode::kCorrupt, fmt::format("{}: {} appears twice", path, *name));
  }
  std::map<std::string, std::string> file_of;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !IsPlainName(file.get_ref<const std::string&>())) {
      return Bad(path, tensor, "its file must be the name of one beside the index");
    }
    file_of[tensor] = file.get<std::string>();
  }
  return file_of;
}

bool IsFile(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

}  // namespace

ShardedTensors::ShardedTensors(std::string path, std::vector<Safetensors> shards,
                               std::vector<Placed> placed)
    : path_(std::move(path)), shards_(std::move(shards)) {
  for (Placed& entry : placed) {
    tensors_.push_back(std::move(entry.tensor));
    shard_of_.push_back(entry.shard);
  }
}

Result<ShardedTensors> ShardedTensors::Open(const std::string& index_path) {
  QUIRE_ASSIGN(const auto file_of, ReadIndex(index_path));
  std::vector<std::string> files;
  files.reserve(file_of.size());
  for (const auto& [tensor, file] : file_of) files.push_back(file);
  std::ranges::sort(files);
  files.erase(std::ranges::unique(files).begin(), files.end());
  if (files.size() > kShardsMax) {
    return Fail(ErrorCode::kUnsupported, fmt::format("{}: {} files, {} is the most that is read",
                                                     index_path, files.size(), kShardsMax));
  }
  const std::filesystem::path directory = std::filesystem::path(index_path).parent_path();
  std::vector<Safetensors> shards;
  std::vector<Placed> placed;
  for (const std::string& file : files) {
    QUIRE_ASSIGN(Safetensors shard, Safetensors::Open((directory / file).string()));
    for (const TensorInfo& tensor : shard.tensors()) {
      const auto said = file_of.find(tensor.name);
      if (said == file_of.end()) {
        return Bad(index_path, tensor.name, fmt::format("is in {}, but not in the index", file));
      }
      if (said->second != file) {
        return Bad(index_path, tensor.name,
                   fmt::format("is in {}, but should be in {}", file, said->second));
      }
      placed.push_back({tensor, static_cast<uint32_t>(shards.size())});
    }
    shards.push_back(std::move(shard));
  }
  const auto name_of = [](const Placed& entry) -> const std::string& { return entry.tensor.name; };
  std::ranges::sort(placed, {}, name_of);
  for (const auto& [tensor, file] : file_of) {
    const bool found = std::ranges::binary_search(placed, tensor, {}, name_of);
    if (!found) return Bad(index_path, tensor, fmt::format("is not in {}", file));
  }
  return ShardedTensors(index_path, std::move(shards), std::move(placed));
}

Result<void> ShardedTensors::Read(const TensorInfo& tensor, uint64_t offset_bytes,
                                  std::span<std::byte> out) const {
  const TensorInfo* own = Find(tensor.name);
  QUIRE_CHECK(own != nullptr);
  const auto at = static_cast<size_t>(own - tensors_.data());
  return shards_[shard_of_[at]].Read(*own, offset_bytes, out);
}

Result<std::unique_ptr<TensorSource>> OpenWeights(const std::string& directory) {
  const std::string whole_path = directory + "/model.safetensors";
  const std::string index_path = whole_path + ".index.json";
  if (!IsFile(whole_path) && IsFile(index_path)) {
    QUIRE_ASSIGN(ShardedTensors shards, ShardedTensors::Open(index_path));
    return std::make_unique<ShardedTensors>(std::move(shards));
  }
  QUIRE_ASSIGN(Safetensors whole, Safetensors::Open(whole_path));
  return std::make_unique<Safetensors>(std::move(whole));
}

}  // namespace quire::model
