// Writing anew what an old data key sealed, in the background, so that the key can go.
#ifndef QUIRE_TIER_COLD_RENEWER_H_
#define QUIRE_TIER_COLD_RENEWER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tier/cold_reader.h"
#include "tier/cold_state.h"
#include "tier/cold_writer.h"

namespace quire::tier {

/// A record at a time is read, opened, sealed with its owner's key of now and written to another
/// segment. It is found all the time: at its former place until it is durable at the new one. Then
/// its former header is overwritten. A crash in between leaves both, of which the newer one counts.
///
/// Threads:  the driver's
/// Lifetime: those that it is made of must outlive it
class ColdRenewer {
 public:
  ColdRenewer(ColdState& state, ColdReader& reader, ColdWriter& writer)
      : state_(state), reader_(reader), writer_(writer) {}

  /// What a publisher has in segments up to this generation is written anew.
  void Renew(const PublisherId& publisher, uint64_t generation);
  void Tick(uint64_t now_us);

 private:
  bool FindSegment();
  void StartReading(uint64_t now_us);
  /// False: the store cannot take it just now.
  bool Write(uint64_t now_us);
  void LetGo();

  ColdState& state_;
  ColdReader& reader_;
  ColdWriter& writer_;
  std::map<PublisherId, uint64_t> until_;         // generations, of those that are not done
  std::vector<ColdEntry> entries_;                // of one segment, to be written anew, last first
  ColdEntry entry_{};                             // that is being read
  std::shared_ptr<ColdReader::Copied> copied_{};  // of it; null: none
  uint64_t due_us_ = 0;
  uint64_t failed_ = 0;  // of the writer's, that were seen
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_COLD_RENEWER_H_
