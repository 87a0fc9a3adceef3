#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/arenas.h"
#include "base/log_listeners.h"
#include "base/stopwatch.h"
#include "packing/method_loader.h"

namespace etshared::runtime {
namespace {

constexpr const char* kNothingPacked = "XNNPACK packs no constant of it";

/// Adds the names of packed constants that the delegate can have made.
void add_names(
    const DelegateRecord& delegate,
    const PackedIndex& index,
    std::set<std::string>& names) {
  for (const std::string& weight : delegate.keys) {
    for (auto entry = index.lower_bound(weight);
         entry != index.end() && entry->first.starts_with(weight);
         ++entry) {
      const std::string bias = entry->first.substr(weight.size());
      if (bias.empty() || delegate.keys.contains(bias)) {
        names.insert(entry->first);
      }
    }
  }
}

/// All that the delegates of one method use.
std::set<std::string> names_of(
    const std::vector<const DelegateRecord*>& delegates,
    const PackedIndex& index) {
  std::set<std::string> names;
  for (const DelegateRecord* delegate : delegates) {
    add_names(*delegate, index, names);
  }
  return names;
}

} // namespace

bool MethodLoader::has_shareable() const {
  for (const Plan& plan : plans_) {
    if (plan.may_share) {
      return true;
    }
  }
  return false;
}

Packing MethodLoader::pack() {
  const std::lock_guard lock(mutex_);
  pack_unless_done();
  Packing packing{false, packing_failure_};
  for (const Plan& plan : plans_) {
    packing.is_shared = packing.is_shared || plan.is_shared;
  }
  return packing;
}

int MethodLoader::packed_descriptor() {
  const std::lock_guard lock(mutex_);
  return memory_ == nullptr ? -1 : memory_->descriptor();
}

void MethodLoader::pack_unless_done() {
  if (has_packed_) {
    return;
  }
  has_packed_ = true;
  auto memory = PackedMemory::create();
  std::string obstacle = memory == nullptr
      ? concat("no memory can be shared: ", std::strerror(errno))
      : memory->obstacle();
  if (obstacle.empty()) {
    obstacle = pack_into(*memory);
  }
  if (obstacle.empty() && !memory->finish()) {
    obstacle = concat(
        "its packed weights cannot be made final: ", std::strerror(errno));
  }
  if (obstacle.empty()) {
    memory_ = std::move(memory);
    return;
  }
  packing_failure_ = obstacle;
  const std::lock_guard lock(stats_mutex_);
  for (Plan& plan : plans_) {
    if (plan.may_share) {
      plan.is_shared = false;
      plan.stats = {};
      plan.stats.obstacle = obstacle;
    }
  }
}

std::string MethodLoader::pack_into(PackedMemory& memory) {
  auto arenas = Arenas::allocate(program_->arena_nbytes());
  if (arenas == nullptr) {
    return "there is no memory to pack them";
  }
  et::HierarchicalAllocator allocator(arenas->spans());
  executorch::extension::MallocMemoryAllocator runtime_allocator;
  std::vector<std::unique_ptr<LoadedMethod>> methods;
  PackedIndex before;
  for (size_t i = 0; i < plans_.size(); ++i) {
    Plan& plan = plans_[i];
    if (!plan.may_share) {
      continue;
    }
    const Stopwatch stopwatch;
    const QuietWeightCache quiet;
    auto loaded = load_shared(
        i, &allocator, &runtime_allocator, memory.path(kPackerNumber));
    const double seconds = stopwatch.seconds();
    // The cache has packed the rest elsewhere, for this load alone.
    if (const std::string error = quiet.first_error(); !error.empty()) {
      return concat("not all of its weights could be packed: ", error);
    }
    PackedIndex after = read_packed_index(memory.descriptor());
    const std::lock_guard lock(stats_mutex_);
    MethodStats& stats = plan.stats;
    stats.pack_seconds = seconds;
    if (!loaded.ok()) {
      stats.obstacle = loaded.failure().message;
      packing_failure_ = stats.obstacle;
      continue;
    }
    methods.push_back(std::move(loaded.value()));
    for (const std::string& name : names_of(plan.delegates, after)) {
      const bool is_new = !before.contains(name);
      ++(is_new ? stats.num_packed : stats.num_reused);
      (is_new ? stats.packed_nbytes : stats.reused_nbytes) += after.at(name);
    }
    plan.is_shared = stats.num_packed + stats.num_reused > 0;
    if (!plan.is_shared) {
      stats.obstacle = kNothingPacked;
    }
    before = std::move(after);
  }
  // A method that fails may do so between writing weights and their index.
  const PackedIndex kept = read_packed_index(memory.descriptor());
  if (!std::includes(kept.begin(), kept.end(), before.begin(), before.end())) {
    return concat("its packed weights are lost: ", packing_failure_);
  }
  return {};
}

FileUse MethodLoader::use_file(int descriptor) {
  const std::lock_guard lock(mutex_);
  const PackedIndex index = read_packed_index(descriptor);
  if (index.empty()) {
    return {false, "XNNPACK's weight cache cannot read it"};
  }
  auto memory = PackedMemory::open_again(descriptor);
  const std::string obstacle = memory == nullptr
      ? concat("it cannot be opened again: ", std::strerror(errno))
      : memory->obstacle();
  if (!obstacle.empty()) {
    return {true, obstacle};
  }
  memory_ = std::move(memory);
  if (has_packed_) {
    return {true, {}};
  }
  has_packed_ = true;
  std::set<std::string> used;
  const std::lock_guard stats_lock(stats_mutex_);
  for (Plan& plan : plans_) {
    if (!plan.may_share) {
      continue;
    }
    MethodStats& stats = plan.stats;
    for (const std::string& name : names_of(plan.delegates, index)) {
      const bool is_new = used.insert(name).second;
      ++(is_new ? stats.num_from_disk : stats.num_reused);
      (is_new ? stats.from_disk_nbytes : stats.reused_nbytes) += index.at(name);
    }
    plan.is_shared = stats.num_from_disk + stats.num_reused > 0;
    if (!plan.is_shared) {
      stats.obstacle = kNothingPacked;
    }
  }
  return {true, {}};
}

} // namespace etshared::runtime
