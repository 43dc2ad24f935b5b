// The pool as text, for people.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "pool/pool.h"

namespace quire::pool {
namespace {

constexpr uint64_t kRowsPrintedWhole = 64;

// Collects rows and folds equal ones in sequence.
class Rows {
 public:
  Rows(uint32_t slots_max, bool fold)
      : number_width_(std::to_string(slots_max - 1).size()), fold_(fold) {}

  void Add(uint64_t first_slot, std::string marks, uint64_t count) {
    if (fold_ && count_ > 0 && marks == marks_) {
      count_ += count;
      return;
    }
    Flush();
    first_slot_ = first_slot;
    marks_ = std::move(marks);
    count_ = count;
  }

  std::string Finish() {
    Flush();
    return std::move(text_);
  }

 private:
  void Flush() {
    if (count_ == 0) return;
    fmt::format_to(std::back_inserter(text_), "{:>{}}  {}", first_slot_, number_width_, marks_);
    if (count_ > 1) fmt::format_to(std::back_inserter(text_), "  x{}", count_);
    text_ += '\n';
    count_ = 0;
  }

  const size_t number_width_;
  const bool fold_;
  uint64_t first_slot_ = 0;
  std::string marks_;
  uint64_t count_ = 0;
  std::string text_;
};

}  // namespace

std::string Pool::Map(const std::function<char(SlotId, uint32_t references)>& mark,
                      uint32_t columns) const {
  QUIRE_CHECK(columns > 0);
  std::vector<uint32_t> references;  // up to the highest slot ever used; the others are free
  uint32_t slots = 0;
  {
    MutexLock lock(mutex_);
    slots = slots_now_;
    references.resize(std::min(used_end_, slots));
    for (size_t i = 0; i < references.size(); ++i) references[i] = slots_[i].references;
  }
  const uint64_t slots_max = slots;
  const uint64_t rows = (slots_max + columns - 1) / columns;
  const bool fold = rows > kRowsPrintedWhole;
  Rows out(slots, fold);
  for (uint64_t row = 0; row < rows; ++row) {
    const uint64_t first = row * columns;
    std::string marks(std::min<uint64_t>(columns, slots_max - first), '.');
    if (fold && first >= references.size() && marks.size() == columns) {
      // The rest was never used: all whole rows of it at once, however many millions.
      const uint64_t whole_rows = (slots_max - first) / columns;
      out.Add(first, std::move(marks), whole_rows);
      row += whole_rows - 1;
      continue;
    }
    for (size_t i = 0; i < marks.size() && first + i < references.size(); ++i) {
      const uint32_t count = references[first + i];
      if (count > 0) marks[i] = mark(SlotId(static_cast<uint32_t>(first + i)), count);
    }
    out.Add(first, std::move(marks), 1);
  }
  return out.Finish();
}

}  // namespace quire::pool
