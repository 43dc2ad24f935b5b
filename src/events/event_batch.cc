#include "events/event_batch.h"

#include <utility>

#include "base/json.h"

namespace quire::events {
namespace {

// vLLM says "GPU" for the memory of the engine on a CPU too, and routers match prompts against it
// alone.
const char* NameOf(Medium medium) { return medium == Medium::kMemory ? "GPU" : "STORAGE"; }

}  // namespace

// Hashes and tokens of the last map are kept apart until the next map begins.
struct EventBatch::Events {
  enum class Kind : uint8_t { kNone, kStored, kRemoved };

  void Begin(Kind wanted, Medium of) {
    End();
    kind = wanted;
    medium = of;
  }
  void End() {
    if (kind == Kind::kStored) {
      list.push_back({{"type", "BlockStored"},
                      {"block_hashes", std::exchange(hashes, Json::array())},
                      {"parent_block_hash", std::exchange(parent, nullptr)},
                      {"token_ids", std::exchange(tokens, Json::array())},
                      {"block_size", block_tokens},
                      {"lora_id", nullptr},
                      {"medium", NameOf(medium)},
                      {"lora_name", nullptr}});
    } else if (kind == Kind::kRemoved) {
      list.push_back({{"type", "BlockRemoved"},
                      {"block_hashes", std::exchange(hashes, Json::array())},
                      {"medium", NameOf(medium)}});
    }
    kind = Kind::kNone;
  }

  uint32_t block_tokens;
  Json list = Json::array();
  Kind kind = Kind::kNone;
  Medium medium = Medium::kMemory;
  Json hashes = Json::array();
  Json parent = nullptr;
  Json tokens = Json::array();
};

EventBatch::EventBatch(uint32_t block_tokens) : events_(new Events{.block_tokens = block_tokens}) {}

EventBatch::~EventBatch() = default;

void EventBatch::Clear() {
  events_->End();
  events_->list.push_back({{"type", "AllBlocksCleared"}});
}

void EventBatch::StoredInMemory(uint64_t hash, std::optional<uint64_t> parent,
                                std::span<const TokenId> tokens) {
  Events& events = *events_;
  const bool goes_on = events.kind == Events::Kind::kStored && events.medium == Medium::kMemory &&
                       parent && events.hashes.back() == *parent;
  if (!goes_on) {
    events.Begin(Events::Kind::kStored, Medium::kMemory);
    if (parent) events.parent = *parent;
  }
  events.hashes.push_back(hash);
  for (const TokenId token : tokens) events.tokens.push_back(token);
}

void EventBatch::StoredBelow(uint64_t hash) {
  Events& events = *events_;
  if (events.kind != Events::Kind::kStored || events.medium != Medium::kStore) {
    events.Begin(Events::Kind::kStored, Medium::kStore);
  }
  events.hashes.push_back(hash);
}

void EventBatch::Removed(uint64_t hash, Medium medium) {
  Events& events = *events_;
  if (events.kind != Events::Kind::kRemoved || events.medium != medium) {
    events.Begin(Events::Kind::kRemoved, medium);
  }
  events.hashes.push_back(hash);
}

bool EventBatch::empty() const {
  return events_->kind == Events::Kind::kNone && events_->list.empty();
}

void EventBatch::Drop() {
  events_->kind = Events::Kind::kNone;
  for (Json* const list : {&events_->list, &events_->hashes, &events_->tokens}) list->clear();
  events_->parent = nullptr;
}

std::string EventBatch::Pack(double time_s) {
  events_->End();
  const Json payload = {time_s, std::exchange(events_->list, Json::array()), 0};
  std::string bytes;
  Json::to_msgpack(payload, bytes);
  return bytes;
}

}  // namespace quire::events
