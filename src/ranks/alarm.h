// How ranks find out which of them failed.
#ifndef QUIRE_RANKS_ALARM_H_
#define QUIRE_RANKS_ALARM_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "quire/env.h"
#include "quire/error.h"
#include "ranks/transport.h"

namespace quire::ranks {

/// A set of ranks: bit r is rank r.
using RankSet = uint64_t;
inline constexpr uint32_t kRanksMax = 64;

/// A rank that fails tells all others why. One that waited too long says for which ranks, and hears
/// from the others for which ranks they wait: those that are waited for, and say nothing, failed.
/// So a rank that itself waits for another one is not blamed.
///
/// Threads: one at a time
class Alarm {
 public:
  Alarm(Transport& transport, const Clock& clock) : transport_(transport), clock_(clock) {}

  /// Whether another rank has raised the alarm. Cheap; does not wait.
  bool IsRaised();
  /// Tells all others that this rank failed.
  void Tell(const Error& error);
  /// What a rank was doing when it gave up.
  struct Wait {
    RankSet silent = 0;  // the ranks that it waited for
    std::string_view what{};
    uint64_t waited_us = 0;
    uint64_t deadline_us = 0;
  };
  /// This rank waited until its deadline, or heard the alarm meanwhile. Tells the others, and
  /// returns within a tenth of the deadline.
  ///
  /// Returns: the failure that a rank told, or kIo with the ranks that failed
  Error Accuse(const Wait& wait);

 private:
  struct Notice {
    RankSet overdue = 0;    // it waited for these until its deadline
    RankSet waits_for = 0;  // it waits for these
    uint32_t code = 0;      // of an error; 0: it waits
    std::array<char, 500> text{};
  };
  struct Other {
    Notice notice{};
    std::unique_ptr<Message> message;  // null: it has come
    bool has_come = false;
  };

  void Listen();
  void Send(const Notice& notice);
  std::optional<Error> Told() const;

  Transport& transport_;
  const Clock& clock_;
  bool listens_ = false;
  std::vector<Other> others_;  // [size]
  Notice own_{};
  std::vector<std::unique_ptr<Message>> sent_;
};

}  // namespace quire::ranks

#endif  // QUIRE_RANKS_ALARM_H_
