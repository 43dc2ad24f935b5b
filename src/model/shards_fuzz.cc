// An index and two files beside it: their tensors can be read, or there is an error, and nothing
// outside of the directory is opened.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/fuzz_input.h"
#include "model/shards.h"

namespace {

// Gone when the program ends.
class Directory {
 public:
  Directory() {
    std::string name = std::filesystem::temp_directory_path() / "shards_fuzz.XXXXXX";
    QUIRE_CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Directory() { std::filesystem::remove_all(path_); }

  void Write(const char* name, std::string_view bytes) const {
    FILE* file = std::fopen((path_ / name).c_str(), "wb");
    QUIRE_CHECK(file != nullptr);
    QUIRE_CHECK(std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
    QUIRE_CHECK(std::fclose(file) == 0);
  }
  std::string Index() const { return path_ / "model.safetensors.index.json"; }

 private:
  std::filesystem::path path_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const Directory directory;
  quire::FuzzInput input(data, bytes);
  for (const char* name : {"model.safetensors.index.json", "a", "b"}) {
    directory.Write(name, input.Next());
  }
  const auto shards = quire::model::ShardedTensors::Open(directory.Index());
  if (!shards) return 0;
  std::vector<std::byte> out;
  for (const auto& tensor : shards->tensors()) {
    QUIRE_CHECK(tensor.bytes <= bytes);
    out.resize(tensor.bytes);
    QUIRE_CHECK(shards->Read(tensor, 0, out).has_value());
  }
  return 0;
}
