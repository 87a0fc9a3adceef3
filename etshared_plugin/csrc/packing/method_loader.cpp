#include "packing/method_loader.h"

#include "base/log_listeners.h"
#include "base/stopwatch.h"

namespace etshared::runtime {
namespace {

// 1.5.1 XNNPACKBackend.h WorkspaceSharingMode: one workspace for the delegates
// with the same runtime allocator. By default all of the process wait for one.
constexpr int kWorkspacePerModel = 1;

bool may_share(const DelegateRecord& delegate) {
  for (const auto& [key, value] : delegate.options) {
    if (key == kWeightCacheOption) {
      return value == "true";
    }
  }
  return false;
}

} // namespace

Outcome<std::shared_ptr<MethodLoader>> MethodLoader::create(
    std::shared_ptr<const SharedProgram> program,
    bool packs_once) {
  std::shared_ptr<MethodLoader> loader(new MethodLoader(std::move(program)));
  ETSHARED_RETURN_IF_FAILED(loader->plan(packs_once));
  return loader;
}

Status MethodLoader::plan(bool packs_once) {
  const auto& context = program_->context();
  if (context) {
    for (const DelegateRecord& delegate : context->delegates) {
      plans_[program_->method_of(delegate)].delegates.push_back(&delegate);
    }
  }
  for (Plan& plan : plans_) {
    std::string& obstacle = plan.stats.obstacle;
    bool has_weights = false;
    for (const DelegateRecord* delegate : plan.delegates) {
      ETSHARED_RETURN_IF_FAILED(
          plan.options.add(delegate->backend_id, delegate->options));
      if (delegate->backend_id != kXnnpackBackend) {
        continue;
      }
      has_weights = true;
      // Whoever exchanges the file would get what was packed of another.
      if (!delegate->external.empty() && obstacle.empty()) {
        obstacle = concat(
            "constants of delegate ", delegate->index, " lie in a data file");
      }
      if (!may_share(*delegate) && obstacle.empty()) {
        obstacle = concat(
            "the record does not allow it for delegate ", delegate->index);
      }
    }
    if (!context) {
      obstacle = "the program has no record";
    } else if (!has_weights) {
      obstacle = "no part of it runs in XNNPACK";
    } else if (!packs_once) {
      obstacle = "packed weights are switched off";
    }
    plan.may_share = obstacle.empty();
    plan.options.set_xnnpack(kWorkspaceOption, kWorkspacePerModel);
    plan.options.set_xnnpack(kWeightCacheOption, false);
  }
  return success();
}

Outcome<std::unique_ptr<LoadedMethod>> MethodLoader::load(
    size_t method,
    Owner& owner) {
  Plan& plan = plans_[method];
  if (plan.may_share) {
    const std::lock_guard lock(mutex_);
    pack_unless_done();
    if (can_share(plan)) {
      if (!owner.number_) {
        owner.number_ = take_number();
      }
      const Stopwatch stopwatch;
      const QuietWeightCache quiet;
      auto loaded = load_shared(
          method, owner.arenas_, &owner.allocator_,
          memory_->path(*owner.number_));
      count_load(method, stopwatch.seconds());
      return loaded;
    }
  }
  const Stopwatch stopwatch;
  auto loaded = LoadedMethod::load(
      *program_, method, owner.arenas_, &owner.allocator_, plan.options);
  count_load(method, stopwatch.seconds());
  return loaded;
}

bool MethodLoader::can_share(Plan& plan) {
  if (!plan.is_shared) {
    return false;
  }
  // It may come and go, with the number of descriptors that are free.
  std::string obstacle = memory_->obstacle();
  const bool can_share = obstacle.empty();
  const std::lock_guard lock(stats_mutex_);
  plan.stats.obstacle = std::move(obstacle);
  return can_share;
}

Outcome<std::unique_ptr<LoadedMethod>> MethodLoader::load_shared(
    size_t method,
    et::HierarchicalAllocator* arenas,
    et::MemoryAllocator* allocator,
    const std::string& path) {
  BackendOptions options = plans_[method].options;
  options.set_xnnpack(kWeightCacheOption, true);
  options.set_xnnpack(kPackedCachePathOption, text_option(path));
  const ConstantAddresses::Scope scope(program_->constant_addresses());
  return LoadedMethod::load(
      *program_, method, arenas, allocator, std::move(options));
}

void MethodLoader::count_load(size_t method, double seconds) {
  const std::lock_guard lock(stats_mutex_);
  ++plans_[method].stats.num_loads;
  plans_[method].stats.load_seconds = seconds;
}

uint64_t MethodLoader::take_number() {
  // The lowest, because the backend remembers every path that it has seen.
  uint64_t number = kPackerNumber + 1;
  while (!numbers_.insert(number).second) {
    ++number;
  }
  return number;
}

std::vector<MethodStats> MethodLoader::stats() const {
  const std::lock_guard lock(stats_mutex_);
  std::vector<MethodStats> stats;
  for (const Plan& plan : plans_) {
    stats.push_back(plan.stats);
  }
  return stats;
}

Status MethodLoader::Owner::load(size_t method) {
  if (methods_[method] != nullptr) {
    return success();
  }
  auto loaded = loader_->load(method, *this);
  if (!loaded.ok()) {
    return std::move(loaded.failure());
  }
  methods_[method] = std::move(loaded.value());
  return success();
}

MethodLoader::Owner::~Owner() {
  methods_.clear();
  if (number_) {
    const std::lock_guard lock(loader_->mutex_);
    loader_->numbers_.erase(*number_);
  }
}

} // namespace etshared::runtime
