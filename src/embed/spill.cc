#include "embed/spill.h"

#include <algorithm>
#include <string>
#include <vector>

namespace quire::embed {

Result<void> FunctionSpill::Store(const LeavingBlock& block) {
  std::vector<std::vector<quire_bytes>> pieces;
  std::vector<quire_leaving_part> parts;
  for (const LeavingPart& part : block.parts) {
    std::vector<quire_bytes>& of_part = pieces.emplace_back();
    for (const auto& piece : part.pieces) {
      of_part.push_back({.data = piece.data(), .bytes = piece.size()});
    }
    parts.push_back({.part = part.part,
                     .crc32c = part.crc32c,
                     .piece_count = static_cast<uint32_t>(of_part.size()),
                     .pieces = of_part.data()});
  }
  const std::string publisher(block.publisher);  // with a NUL
  const std::string account(block.account);
  quire_leaving_block leaving{.size = sizeof(quire_leaving_block),
                              .key = {},
                              .parent_key = {},
                              .index = block.index,
                              .tokens = block.tokens.data(),
                              .token_count = block.tokens.size(),
                              .parts = parts.data(),
                              .part_count = static_cast<uint32_t>(parts.size()),
                              .erase_epoch = block.erase_epoch,
                              .publisher = publisher.c_str(),
                              .account = account.c_str(),
                              .retained_until_us = block.retained_until_us,
                              .priority = block.priority};
  std::ranges::copy(block.key, leaving.key);
  std::ranges::copy(block.parent_key, leaving.parent_key);
  if (store_(context_, &leaving) == QUIRE_OK) return {};
  return Fail(ErrorCode::kIo, "the spill's function had an error");
}

}  // namespace quire::embed
