#include "model/adapter.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <map>
#include <span>
#include <utility>

#include "base/bits.h"
#include "base/hash.h"
#include "env/file.h"
#include "model/safetensors.h"

namespace quire::model {
namespace {

constexpr uint64_t kAdapterConfigBytesMax = 1 << 20;
constexpr uint64_t kAdapterAlignment = 64;
constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kDown = ".lora_A.weight";
constexpr std::string_view kUp = ".lora_B.weight";

// A module of the base model that adapters can change.
struct AdapterModule {
  std::string name;
  uint32_t layer;
  std::vector<LowRank> AdapterLayer::* product;
  uint32_t inputs;
  uint32_t outputs;
  uint32_t first_column;
};

// The one list of them.
std::vector<AdapterModule> ModulesOf(const ModelConfig& model) {
  const uint32_t hidden = model.hidden;
  const uint32_t query_dim = model.query_dim();
  const uint32_t kv_dim = model.kv_dim();
  const uint32_t wide = model.intermediate;
  std::vector<AdapterModule> modules;
  for (uint32_t i = 0; i < model.layers; ++i) {
    const std::string at = fmt::format("model.layers.{}.", i);
    const auto add = [&](const char* name, std::vector<LowRank> AdapterLayer::* product,
                         uint32_t inputs, uint32_t outputs, uint32_t first_column = 0) {
      modules.push_back({at + name, i, product, inputs, outputs, first_column});
    };
    add("self_attn.q_proj", &AdapterLayer::qkv, hidden, query_dim);
    add("self_attn.k_proj", &AdapterLayer::qkv, hidden, kv_dim, query_dim);
    add("self_attn.v_proj", &AdapterLayer::qkv, hidden, kv_dim, query_dim + kv_dim);
    add("self_attn.o_proj", &AdapterLayer::out, query_dim, hidden);
    add("mlp.gate_proj", &AdapterLayer::gate_up, hidden, wide);
    add("mlp.up_proj", &AdapterLayer::gate_up, hidden, wide, wide);
    add("mlp.down_proj", &AdapterLayer::down, wide, hidden);
  }
  return modules;
}

}  // namespace

std::vector<TensorSpec> AdapterTensorsOf(const ModelConfig& model, uint32_t rank) {
  std::vector<TensorSpec> specs;
  for (const AdapterModule& module : ModulesOf(model)) {
    const std::string name = std::string(kPrefix) + module.name;
    specs.push_back({name + std::string(kDown), {rank, module.inputs}});
    specs.push_back({name + std::string(kUp), {module.outputs, rank}});
  }
  std::ranges::sort(specs, {}, &TensorSpec::name);
  return specs;
}

uint64_t AdapterBytes(const ModelConfig& model, uint32_t rank, ComputeType type) {
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : AdapterTensorsOf(model, rank)) {
    bytes += RoundUp(PackedBytes(tensor.shape[0], tensor.shape[1], type), kAdapterAlignment);
  }
  return bytes;
}

class Adapter::Loader {
 public:
  Loader(const AdapterConfig& config, const TensorSource& source, const ModelConfig& model)
      : config_(config), source_(source), model_(model), adapter_(new Adapter()) {}

  Result<std::unique_ptr<Adapter>> Load(uint64_t bytes_max) {
    adapter_->layers_.resize(model_.layers);
    QUIRE_TRY(FindModules());
    QUIRE_TRY(CheckNames());
    QUIRE_TRY(Allocate(bytes_max));
    Blake2b<32> hash;
    hash.Update("quire adapter");
    for (Found& found : found_) QUIRE_TRY(LoadModule(found, hash));
    adapter_->digest_ = hash.Finish();
    return std::move(adapter_);
  }

 private:
  struct Found {
    AdapterModule module;
    const TensorInfo* down;
    const TensorInfo* up;
    LowRank low_rank{};
  };

  std::unexpected<Error> Bad(ErrorCode code, std::string_view tensor, std::string_view why) const {
    return Fail(code, fmt::format("{}: tensor {}: {}", source_.path(), tensor, why));
  }

  // Everything that can be wrong is found before a byte is read or reserved.
  Result<void> FindModules() {
    size_t tensors = 0;
    for (AdapterModule& module : ModulesOf(model_)) {
      const std::string name = std::string(kPrefix) + module.name;
      Found found{.module = std::move(module),
                  .down = source_.Find(name + std::string(kDown)),
                  .up = source_.Find(name + std::string(kUp))};
      if (found.down == nullptr && found.up == nullptr) continue;
      if (found.down == nullptr || found.up == nullptr) {
        const TensorInfo* there = found.down != nullptr ? found.down : found.up;
        return Bad(ErrorCode::kCorrupt, there->name,
                   fmt::format("{} is missing", found.down == nullptr ? kDown : kUp));
      }
      QUIRE_TRY(CheckModule(found));
      tensors += 2;
      found_.push_back(std::move(found));
    }
    if (tensors == source_.tensors().size() && tensors > 0) return {};
    for (const TensorInfo& tensor : source_.tensors()) {
      const auto is_its = [&](const Found& found) {
        return found.down == &tensor || found.up == &tensor;
      };
      if (std::ranges::none_of(found_, is_its)) {
        return Bad(ErrorCode::kUnsupported, tensor.name,
                   "the model has no such module, or none that adapters change");
      }
    }
    return Fail(ErrorCode::kCorrupt, fmt::format("{}: no tensors", source_.path()));
  }

  Result<void> CheckModule(const Found& found) {
    const AdapterModule& module = found.module;
    const auto expect = [&](const TensorInfo& tensor, uint64_t rows,
                            uint64_t columns) -> Result<void> {
      const std::vector<uint64_t> shape = {rows, columns};
      if (tensor.shape == shape) return {};
      return Bad(
          ErrorCode::kCorrupt, tensor.name,
          fmt::format("has shape {}, expected {}", ShapeText(tensor.shape), ShapeText(shape)));
    };
    const uint64_t said = found.down->shape.empty() ? 0 : found.down->shape[0];
    const uint64_t rank = config_.has_rank_pattern ? said : config_.rank;
    if (rank == 0 || rank > kAdapterRankMax) {
      return Bad(ErrorCode::kUnsupported, found.down->name,
                 fmt::format("rank {} is outside 1..{}", rank, kAdapterRankMax));
    }
    QUIRE_TRY(expect(*found.down, rank, module.inputs));
    QUIRE_TRY(expect(*found.up, module.outputs, rank));
    const ComputeType type = source_.tensors().front().type;
    for (const TensorInfo* tensor : {found.down, found.up}) {
      if (tensor->type != type) {
        return Bad(ErrorCode::kUnsupported, tensor->name,
                   fmt::format("is {}, others are {}; all must have one type",
                               TypeName(tensor->type), TypeName(type)));
      }
    }
    return {};
  }

  // The tensors say which modules change; where the config lists them, both must agree.
  Result<void> CheckNames() const {
    for (const Found& found : found_) {
      if (!config_.Names(found.module.name)) {
        return Bad(ErrorCode::kCorrupt, found.down->name, "target_modules has not its module");
      }
    }
    for (const std::string& name : config_.modules) {
      const AdapterConfig one{.modules = {name}};
      const auto fits = [&](const Found& found) { return one.Names(found.module.name); };
      if (std::ranges::none_of(found_, fits)) {
        return Fail(
            ErrorCode::kUnsupported,
            fmt::format("{}: no tensor of {}, which target_modules names", source_.path(), name));
      }
    }
    return {};
  }

  Result<void> Allocate(uint64_t bytes_max) {
    uint64_t bytes = 0;
    const auto place = [&](PackedMatrix& matrix, const TensorInfo& tensor) {
      matrix = {.n = static_cast<uint32_t>(tensor.shape[0]),
                .k = static_cast<uint32_t>(tensor.shape[1]),
                .type = tensor.type};
      bytes += RoundUp(PackedBytes(matrix.n, matrix.k, matrix.type), kAdapterAlignment);
    };
    for (Found& found : found_) {
      place(found.low_rank.down, *found.down);
      place(found.low_rank.up, *found.up);
    }
    if (bytes > bytes_max) {
      return Fail(ErrorCode::kTooLarge,
                  fmt::format("{}: {} bytes, at most {} are free for adapters", source_.path(),
                              bytes, bytes_max));
    }
    adapter_->memory_ = MakeHostMemory(/*huge_pages=*/true);
    QUIRE_ASSIGN(Reservation arena, Reservation::CreateCommitted(*adapter_->memory_, bytes));
    adapter_->arena_.emplace(std::move(arena));
    next_ = adapter_->arena_->base();
    return {};
  }

  Result<void> LoadModule(Found& found, Blake2b<32>& hash) {
    const AdapterModule& module = found.module;
    LowRank& low_rank = found.low_rank;
    low_rank.first_column = module.first_column;
    QUIRE_ASSIGN(low_rank.scale, config_.ScaleOf(module.name, low_rank.down.n, source_.path()));
    hash.UpdateNumber(uint64_t{module.name.size()});
    hash.Update(module.name);
    hash.UpdateNumber(std::bit_cast<uint32_t>(low_rank.scale));
    QUIRE_TRY(LoadMatrix(*found.down, low_rank.down, hash));
    QUIRE_TRY(LoadMatrix(*found.up, low_rank.up, hash));
    adapter_->rank_ = std::max(adapter_->rank_, low_rank.down.n);
    ++adapter_->modules_;
    (adapter_->layers_[module.layer].*module.product).push_back(low_rank);
    return {};
  }

  Result<void> LoadMatrix(const TensorInfo& tensor, PackedMatrix& matrix, Blake2b<32>& hash) {
    bytes_.resize(tensor.bytes);
    QUIRE_TRY(source_.Read(tensor, 0, bytes_));
    hash.UpdateNumber(tensor.type);
    hash.UpdateNumber(matrix.n);
    hash.UpdateNumber(matrix.k);
    hash.Update(bytes_);
    PackRows(matrix, bytes_.data(), 0, matrix.n, next_);
    matrix.panels = next_;
    next_ += RoundUp(PackedBytes(matrix.n, matrix.k, matrix.type), kAdapterAlignment);
    return {};
  }

  const AdapterConfig& config_;
  const TensorSource& source_;
  const ModelConfig& model_;
  std::unique_ptr<Adapter> adapter_;
  std::vector<Found> found_;
  std::vector<std::byte> bytes_;  // of one tensor
  std::byte* next_ = nullptr;
};

Result<std::unique_ptr<Adapter>> Adapter::Load(const std::string& directory,
                                               const ModelConfig& model, uint64_t bytes_max) {
  const std::string config_path = directory + "/adapter_config.json";
  QUIRE_ASSIGN(const std::string text, ReadFile(config_path, kAdapterConfigBytesMax));
  QUIRE_ASSIGN(const AdapterConfig config, ParseAdapterConfig(text, config_path));
  QUIRE_ASSIGN(const Safetensors source,
               Safetensors::Open(directory + "/adapter_model.safetensors"));
  return Create(config, source, model, bytes_max);
}

Result<std::unique_ptr<Adapter>> Adapter::Create(const AdapterConfig& config,
                                                 const TensorSource& source,
                                                 const ModelConfig& model, uint64_t bytes_max) {
  return Loader(config, source, model).Load(bytes_max);
}

}  // namespace quire::model
