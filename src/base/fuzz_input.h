// The pieces of a fuzzer's input: texts with lines of three dashes between them, so that seeds can
// be written and read by hand.
#ifndef QUIRE_BASE_FUZZ_INPUT_H_
#define QUIRE_BASE_FUZZ_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace quire {

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t bytes)
      : rest_(reinterpret_cast<const char*>(data), bytes) {}

  /// The next piece; empty when there are no more.
  std::string_view Next() {
    constexpr std::string_view kBetween = "\n---\n";
    const size_t end = rest_.find(kBetween);
    const std::string_view piece = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + kBetween.size());
    return piece;
  }

 private:
  std::string_view rest_;
};

}  // namespace quire

#endif  // QUIRE_BASE_FUZZ_INPUT_H_
