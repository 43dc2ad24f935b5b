#include "env/disk_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace quire {
namespace {

constexpr uint64_t kSectorBytes = 512;

}  // namespace

bool DiskImage::File::IsBad(uint64_t offset, uint64_t bytes, bool writing) const {
  return std::ranges::any_of(bad, [&](const BadSectors& sectors) {
    return (sectors.for_good || !writing) && sectors.begin < offset + bytes && offset < sectors.end;
  });
}

void DiskImage::File::Mend(uint64_t offset, uint64_t bytes) {
  std::vector<BadSectors> left;
  for (const BadSectors& sectors : bad) {
    const uint64_t before = std::min(sectors.end, offset);
    const uint64_t after = std::max(sectors.begin, offset + bytes);
    if (sectors.for_good) {
      left.push_back(sectors);
      continue;
    }
    if (sectors.begin < before) left.push_back({.begin = sectors.begin, .end = before});
    if (after < sectors.end) left.push_back({.begin = after, .end = sectors.end});
  }
  bad = std::move(left);
}

uint64_t DiskImage::bytes_used() const {
  uint64_t bytes = 0;
  for (const auto& [name, file] : names_) bytes += file->contents.size();
  return bytes;
}

DiskImage::FilePointer DiskImage::Find(const std::string& name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? nullptr : found->second;
}

void DiskImage::SetName(const std::string& name, FilePointer file) {
  if (file != nullptr) {
    names_[name] = file;
  } else {
    names_.erase(name);
  }
  unsynced_names_.push_back({.name = name, .file = std::move(file)});
}

void DiskImage::MakeDurable(const NameChange& change) {
  if (change.file != nullptr) {
    durable_names_[change.name] = change.file;
  } else {
    durable_names_.erase(change.name);
  }
}

void DiskImage::SyncNames(const std::string& directory) {
  std::erase_if(unsynced_names_, [&](const NameChange& change) {
    if (!change.name.starts_with(directory + "/")) return false;
    MakeDurable(change);
    return true;
  });
}

Result<void> DiskImage::Grow(File& file, uint64_t bytes) {
  if (bytes <= file.contents.size()) return {};
  const uint64_t more = bytes - file.contents.size();
  const uint64_t used = bytes_used();
  if (used > bytes_max_ || more > bytes_max_ - used) {
    return Fail(ErrorCode::kNoSpace, fmt::format("the disk has no room for {} bytes", more));
  }
  file.contents.resize(bytes);
  file.unsynced.push_back({.offset = bytes, .bytes = {}, .resizes = true});
  return {};
}

Result<void> DiskImage::Resize(File& file, uint64_t bytes) {
  QUIRE_TRY(Grow(file, bytes));
  file.contents.resize(bytes);
  file.unsynced.push_back({.offset = bytes, .bytes = {}, .resizes = true});
  return {};
}

void DiskImage::Apply(std::vector<std::byte>& contents, const Change& change) {
  if (change.resizes) {
    contents.resize(change.offset);
    return;
  }
  contents.resize(std::max<uint64_t>(contents.size(), change.offset + change.bytes.size()));
  std::copy_n(change.bytes.begin(), change.bytes.size(),
              contents.begin() + static_cast<ptrdiff_t>(change.offset));
}

void DiskImage::Write(File& file, uint64_t offset, std::span<const std::byte> bytes) {
  Change change = {.offset = offset, .bytes = {bytes.begin(), bytes.end()}};
  Apply(file.contents, change);
  file.unsynced.push_back(std::move(change));
}

void DiskImage::WriteTorn(std::vector<std::byte>& contents, uint64_t offset,
                          std::span<const std::byte> bytes) {
  contents.resize(std::max<uint64_t>(contents.size(), offset + bytes.size()));
  for (uint64_t done = 0; done < bytes.size(); done += kSectorBytes) {
    if (prng_.NextChance(2)) continue;
    const uint64_t sector = std::min<uint64_t>(kSectorBytes, bytes.size() - done);
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(done), sector,
                contents.begin() + static_cast<ptrdiff_t>(offset + done));
  }
}

std::vector<std::byte> DiskImage::Torn(const File& file, uint64_t offset,
                                       std::span<const std::byte> bytes) {
  std::vector<std::byte> after = file.contents;
  WriteTorn(after, offset, bytes);
  return after;
}

void DiskImage::Sync(File& file) {
  for (const Change& change : file.unsynced) Apply(file.durable, change);
  file.unsynced.clear();
}

void DiskImage::LosePower() {
  const uint64_t kept = prng_.NextBelow(unsynced_names_.size() + 1);
  for (uint64_t i = 0; i < kept; ++i) MakeDurable(unsynced_names_[i]);
  unsynced_names_.clear();
  names_ = durable_names_;
  for (auto& [name, file] : names_) {
    for (const Change& change : file->unsynced) {
      if (prng_.NextChance(3)) continue;
      if (!change.resizes && prng_.NextChance(2)) {
        WriteTorn(file->durable, change.offset, change.bytes);
      } else {
        Apply(file->durable, change);
      }
    }
    file->unsynced.clear();
    file->contents = file->durable;
  }
}

}  // namespace quire
