// Bugs that a test plants to see whether the simulators find them. In a normal build every question
// is a constant `false` and no code remains; only the simulators' canary test defines
// QUIRE_CANARIES. Used in .cc files alone: a header would mean two things in one program.
#ifndef QUIRE_BASE_CANARY_H_
#define QUIRE_BASE_CANARY_H_

#include <cstdint>

namespace quire {

enum class Canary : uint8_t {
  kNone,
  // In the cold store.
  kTrustCatalogue,  // its entries are not compared with the segments and their headers
  kForgetSync,      // records are durable without a sync
  kReuseEarly,      // a segment is written anew while it is read
  kIgnoreCap,       // segments are made without end
  kLoseEpoch,       // an erasure is confirmed before it is durable
  kSwapRecords,     // two records of a commit change places in the index
  kSkipVerify,      // payloads are handed out unchecked
  kTellPresent,     // a put of a record that another put is writing ends as "present" all the same
  kKeepLeftovers,   // the bytes of an erased publisher stay behind those of another one
  kGoodCopyFirst,   // the good copy of the epochs is written to while the other one is none
  // In the remote tier.
  kTrustSealed,     // what came is handed out whether it is authentic or not
  kTrustOldEpochs,  // it is handed out by a machine that has not heard of erasures lately
  kConfirmEarly,    // an erasure ends before every machine must have heard of it
  // In the cache and its transfers.
  kAttachEarly,      // blocks are published before their bytes came
  kTrustFailed,      // a load that failed counts as one that came
  kForgetLate,       // a load that is cancelled ends while the store still writes to its slots
  kMistakeBlock,     // the result of a write is noted for whatever block has the id by then
  kReleaseTwice,     // a load lets go of its blocks twice
  kLeakSlots,        // a load keeps the slots of blocks that did not come
  kTrustChildren,    // blocks are looked for after one that the store lacks
  kEraseAbove,       // an erasure reaches memory alone
  kFlushEarly,       // a flush does not wait for writes that were not given to the store yet
  kTrustArrived,     // bytes that a device copied into its slots are not compared with anything
  kForgetLoan,       // the memory of a record is given to another one while it is lent
  kAttachErased,     // a load is attached though its tokens were erased meanwhile
  kKeepLoaded,       // the slots that a load gives back keep the bytes it loaded
  kTrustWarm,        // records that only the warm tier has count as durable
  kKeepFree,         // slots that were given back before an erasure keep the erased bytes
  kAcceptDemoted,    // exact lookups find blocks that are there in the lower precision alone
  kKeepApproximate,  // what is computed after such blocks is published as if it were exact
  kCutEarly,         // the first blocks of a streamed context leave memory before they are durable
  // In the engine.
  kForgetWaiters,  // requests that wait for a prefix are not woken when its owner has ended
  kForgetSampler,  // a request that was preempted draws from the start again
  kStopForReader,  // no other request runs beside one whose reader is slow
  kAnswerEarly,    // a session's answer comes before its file is written
  kKeepText,       // the text of a session is not overwritten
};

#if defined(QUIRE_CANARIES)
inline Canary planted_canary = Canary::kNone;
inline bool Planted(Canary canary) { return canary == planted_canary; }
#else
constexpr bool Planted(Canary /*canary*/) { return false; }
#endif

}  // namespace quire

#endif  // QUIRE_BASE_CANARY_H_
