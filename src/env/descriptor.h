// A descriptor of the system that closes itself.
#ifndef QUIRE_ENV_DESCRIPTOR_H_
#define QUIRE_ENV_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace quire {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.Take()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }

  int get() const { return number_; }  // negative: there is none
  int Take() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

}  // namespace quire

#endif  // QUIRE_ENV_DESCRIPTOR_H_
