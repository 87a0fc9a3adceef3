#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/core/hierarchical_allocator.h>

#include "method/loaded_method.h"
#include "packing/packed_index.h"
#include "packing/packed_memory.h"
#include "program/backend_options.h"
#include "program/program.h"

namespace etshared::runtime {

/// The number of the path that weights are packed through; sessions have others.
inline constexpr uint64_t kPackerNumber = 0;

/// What loading one method has taken, and what of it is shared.
struct MethodStats {
  uint64_t num_loads = 0;
  /// Of the latest load by a session, without the packing.
  double load_seconds = 0;
  /// Of the one load that packed what earlier methods had not.
  double pack_seconds = 0;
  uint64_t num_packed = 0;
  uint64_t packed_nbytes = 0;
  /// What was packed in a file, and no earlier method has used.
  uint64_t num_from_disk = 0;
  uint64_t from_disk_nbytes = 0;
  /// What earlier methods had packed, or used from the file.
  uint64_t num_reused = 0;
  uint64_t reused_nbytes = 0;
  /// Why sessions pack for themselves, or the latest did; empty when they share,
  /// or may yet.
  std::string obstacle;
};

/// What has become of packing for all methods.
struct Packing {
  /// Whether any method shares.
  bool is_shared;
  /// Why not all that may share could be packed; empty when it was.
  std::string failure;
};

/// What has become of a file with packed weights.
struct FileUse {
  /// Whether the weight cache could read it.
  bool is_intact;
  /// Why it is not used; empty when it is.
  std::string problem;
};

/// Loads the methods of a program, with weights that XNNPACK packs once for all
/// sessions: the first load packs those of every method that may share into
/// memory that is then sealed, unless a file has them; each session maps it by a
/// path of its own, and so has a cache of its own without a lock in common.
///
/// Thread-safe.
class MethodLoader {
 public:
  /// Everything packs for itself unless `packs_once`, or where the record does
  /// not allow otherwise.
  static Outcome<std::shared_ptr<MethodLoader>> create(
      std::shared_ptr<const SharedProgram> program,
      bool packs_once);

  /// Methods of one owner: one number, one path, one cache.
  class Owner {
   public:
    /// The arenas must outlive this.
    Owner(
        std::shared_ptr<MethodLoader> loader,
        et::HierarchicalAllocator* arenas)
        : loader_(std::move(loader)),
          arenas_(arenas),
          methods_(loader_->plans_.size()) {}
    ~Owner();
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;

    /// Loads the method unless it is loaded.
    Status load(size_t method);

    /// nullptr when it is not loaded.
    LoadedMethod* operator[](size_t method) const {
      return methods_[method].get();
    }

   private:
    friend class MethodLoader;

    std::shared_ptr<MethodLoader> loader_;
    et::HierarchicalAllocator* arenas_;
    /// XNNPACK shares one workspace among delegates with the same allocator.
    executorch::extension::MallocMemoryAllocator allocator_;
    std::optional<uint64_t> number_;
    std::vector<std::unique_ptr<LoadedMethod>> methods_;
  };

  const std::shared_ptr<const SharedProgram>& program() const {
    return program_;
  }

  /// By method.
  std::vector<MethodStats> stats() const;

  /// Whether any method may share.
  bool has_shareable() const;

  /// Packs now, unless that is done.
  Packing pack();

  /// The packed weights as XNNPACK's weight cache has written them, to be read
  /// only; negative when there are none. Valid until `use_file()`.
  int packed_descriptor();

  /// Takes the packed weights of a file that holds those of this program. No
  /// session may have loaded anything yet. When the file cannot be used, nothing
  /// has changed.
  FileUse use_file(int descriptor);

 private:
  struct Plan {
    std::vector<const DelegateRecord*> delegates;
    BackendOptions options;
    bool may_share = false;
    /// Decided when the weights are packed.
    bool is_shared = false;
    MethodStats stats;
  };

  explicit MethodLoader(std::shared_ptr<const SharedProgram> program)
      : program_(std::move(program)), plans_(program_->methods().size()) {}

  Status plan(bool packs_once);
  Outcome<std::unique_ptr<LoadedMethod>> load(size_t method, Owner& owner);
  void count_load(size_t method, double seconds);

  // The caller holds mutex_ in all of these.
  bool can_share(Plan& plan);
  Outcome<std::unique_ptr<LoadedMethod>> load_shared(
      size_t method,
      et::HierarchicalAllocator* arenas,
      et::MemoryAllocator* allocator,
      const std::string& path);
  void pack_unless_done();
  /// Says what went wrong, or nothing.
  std::string pack_into(PackedMemory& memory);
  uint64_t take_number();

  std::shared_ptr<const SharedProgram> program_;
  /// Held while weights are packed and while methods that share them load,
  /// never while anything executes. Whoever takes it must not hold the GIL:
  /// backends log meanwhile, and logging may need it.
  std::mutex mutex_;
  std::vector<Plan> plans_;
  bool has_packed_ = false;
  std::string packing_failure_;
  /// Present when anything is shared.
  std::unique_ptr<PackedMemory> memory_;
  std::set<uint64_t> numbers_;
  /// Guards the statistics, which are read while something loads.
  mutable std::mutex stats_mutex_;
};

} // namespace etshared::runtime
