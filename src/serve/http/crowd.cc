#include "serve/http/crowd.h"

#include "serve/http/connection.h"

namespace quire::serve::http {

Crowd::Verdict Crowd::MakeRoom(const std::string& address) {
  uint64_t count = 0;
  uint64_t of_address = 0;
  for (const Member& member : members_) {
    if (member.dropped) continue;
    ++count;
    if (member.address == address) ++of_address;
  }
  const bool address_full = of_address >= most_per_address_;
  if (!address_full && count < most_) return Verdict::kLetIn;
  for (Member& member : members_) {
    if (member.dropped || (address_full && member.address != address)) continue;
    if (!member.connection->MayBeDropped()) continue;
    member.dropped = true;
    member.connection->Drop();
    return Verdict::kReplaces;
  }
  return address_full ? Verdict::kAddressFull : Verdict::kFull;
}

void Crowd::Remove(const std::shared_ptr<Connection>& connection) {
  members_.remove_if([&](const Member& member) { return member.connection == connection; });
}

void Crowd::CloseAll(bool cancel) {
  for (const Member& member : members_) member.connection->Close(cancel);
}

}  // namespace quire::serve::http
