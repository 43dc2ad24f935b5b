// Looks for erased bytes in everything that a process and its disk hold: files, staging and arenas,
// whatever they are used for by now.
#ifndef QUIRE_SIM_RAW_BYTES_H_
#define QUIRE_SIM_RAW_BYTES_H_

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "env/faulty_files.h"
#include "tier/record.h"

namespace quire::sim {

/// Knows the payloads of all records that it ever saw in segments by a few bytes of each of their
/// sectors, so that no index, header or generation has to tell whose bytes are somewhere.
class RawBytes {
 public:
  /// The bytes that identify a record's owner: sections of layers from `layer_first` on of blocks
  /// from `block_first` on. The first layers and blocks hardly depend on the rest of a text.
  explicit RawBytes(uint32_t layer_first = 0, uint64_t block_first = 0)
      : layer_first_(layer_first), block_first_(block_first) {}

  /// Looks for whole records that it has not seen, in all segments of a directory. Bytes that are
  /// seen again in a record of a later epoch belong to that epoch.
  void Learn(FaultyFiles& files, const std::string& directory);
  /// The same of a warm tier, which may have records that the disk did not take.
  void LearnFrom(std::span<const std::byte> memory);

  /// Bytes that a publisher had before an epoch and that are in a file of the disk, in other
  /// memory, or, where no request is under way, in the staging of the store. Empty: none.
  std::string Find(const tier::PublisherId& publisher, uint64_t epoch, FaultyFiles& files,
                   bool is_idle, std::span<const std::span<const std::byte>> memory = {});

 private:
  using Word = std::array<uint64_t, 2>;
  struct WordHash {
    size_t operator()(const Word& word) const { return word[0] * 0x9e3779b97f4a7c15 ^ word[1]; }
  };
  struct Origin {
    tier::PublisherId publisher{};
    uint64_t erase_epoch = 0;
    bool is_of_several = false;  // different texts may have equal computed values
  };
  using Place = std::tuple<std::string, uint64_t, uint64_t>;  // path, offset, generation

  std::string FindIn(const tier::PublisherId& publisher, uint64_t epoch,
                     std::span<const std::byte> bytes, const std::string& name, FaultyFiles& files);
  static bool IsOfAnother(const tier::PublisherId& publisher, const Word& word, FaultyFiles& files);
  void Add(const tier::RecordSummary& record, std::span<const std::byte> bytes);

  uint32_t layer_first_;
  uint64_t block_first_;
  std::unordered_map<Word, Origin, WordHash> words_;
  std::map<Place, Digest> seen_;  // whole records, by key
};

}  // namespace quire::sim

#endif  // QUIRE_SIM_RAW_BYTES_H_
