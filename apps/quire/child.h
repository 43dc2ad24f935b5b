// This program run once more, as another process.
#ifndef QUIRE_APPS_CHILD_H_
#define QUIRE_APPS_CHILD_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "quire/error.h"

namespace quire::app {

/// Runs this program with these arguments and returns the JSON object that it prints. What it says
/// on stderr goes where this process's goes.
///
/// Errors: kIo it cannot be started, ends with another code than 0, or prints something else
Result<nlohmann::json> RunChild(const std::vector<std::string>& arguments);

/// A directory that goes when this does, with everything in it.
class TemporaryDirectory {
 public:
  /// Errors: kIo, kNoSpace
  static Result<TemporaryDirectory> Make();
  TemporaryDirectory(TemporaryDirectory&& other) noexcept;
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory();

  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace quire::app

#endif  // QUIRE_APPS_CHILD_H_
