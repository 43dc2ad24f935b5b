#include "model/utf8.h"

namespace quire::model {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

}  // namespace

std::string Utf8Stream::Add(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) AddByte(static_cast<unsigned char>(c), out);
  return out;
}

std::string Utf8Stream::Finish() {
  const bool cut = missing_ > 0;
  pending_.clear();
  missing_ = 0;
  return std::string(cut ? kReplacement : "");
}

void Utf8Stream::AddByte(unsigned char byte, std::string& out) {
  if (missing_ > 0) {
    if (byte >= low_ && byte <= high_) {
      pending_ += static_cast<char>(byte);
      low_ = 0x80;
      high_ = 0xbf;
      if (--missing_ > 0) return;
      out += pending_;
      pending_.clear();
      return;
    }
    out += kReplacement;  // and this byte begins anew
    pending_.clear();
    missing_ = 0;
  }
  if (byte < 0x80) {
    out += static_cast<char>(byte);
    return;
  }
  if (byte < 0xc2 || byte > 0xf4) {  // not a first byte, or only of overlong or too large codes
    out += kReplacement;
    return;
  }
  pending_ = static_cast<char>(byte);
  missing_ = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
  // The second byte is where overlong forms, surrogates and codes above U+10FFFF show.
  low_ = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
  high_ = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
}

}  // namespace quire::model
