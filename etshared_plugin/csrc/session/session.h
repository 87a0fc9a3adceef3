#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <executorch/runtime/core/hierarchical_allocator.h>

#include "base/arenas.h"
#include "packing/method_loader.h"
#include "program/program.h"
#include "program/tensor.h"

namespace etshared::runtime {

/// Which threads a session computes with.
enum class SessionThreads {
  /// ExecuTorch's thread pool, one for the process: calls wait for each other.
  kPool,
  /// The one that calls.
  kCaller,
};

/// One life of a program's state: arenas, and methods loaded over them.
///
/// Every function may be called from any thread; one runs at a time.
class Session {
 public:
  /// Starts with the initial values of all state.
  static Outcome<std::unique_ptr<Session>> create(
      std::shared_ptr<MethodLoader> loader,
      SessionThreads threads);

  /// Runs a method. Whatever is found wrong before it executes leaves
  /// everything as it was; a failure later poisons the session.
  Outcome<std::vector<OutputValue>> call(
      size_t method,
      const std::vector<InputValue>& inputs);

  /// Loads a method now rather than at its first call; never changes state.
  Status load(size_t method);
  bool is_loaded(size_t method);

  /// Gives the initial values to all state, and forgives an earlier failure.
  Status reset();

  /// Gives the initial values to these buffers of the record.
  Status reset(const std::vector<size_t>& buffers);

  /// Copies of these buffers of the record, from one moment.
  Outcome<std::vector<OwnedTensor>> snapshot(
      const std::vector<size_t>& buffers);

  /// Writes these buffers; after a failure, none. All of them forgive an earlier
  /// failure.
  Status restore(const std::vector<std::pair<size_t, TensorView>>& values);

  /// Writes one buffer, whatever has failed before.
  Status assign(size_t buffer, const TensorView& value);

  const std::shared_ptr<const SharedProgram>& program() const {
    return loader_->program();
  }

  /// Memory of the state; it never moves, and may outlive the session.
  const std::shared_ptr<Arenas>& arenas() const {
    return arenas_;
  }
  uint8_t* address(const BufferRecord& buffer) const {
    return arenas_->at(buffer.mem_id, buffer.offset);
  }

 private:
  Session(
      std::shared_ptr<MethodLoader> loader,
      std::shared_ptr<Arenas> arenas,
      SessionThreads threads)
      : loader_(std::move(loader)),
        arenas_(std::move(arenas)),
        threads_(threads),
        allocator_(arenas_->spans()),
        methods_(loader_, &allocator_) {}

  // The caller holds mutex_ in all of these but the last two.
  Status check_alive() const;
  Status load_locked(size_t method);
  Status write_initial_values(const std::vector<size_t>& buffers);
  Status write_initial_data();
  Status run_generated(Arenas& scratch) const;
  Status write(size_t buffer, const TensorView& value);
  std::vector<size_t> all_buffers() const;
  Status check_fit(size_t buffer, const TensorView& value) const;

  std::mutex mutex_;
  std::shared_ptr<MethodLoader> loader_;
  std::shared_ptr<Arenas> arenas_;
  SessionThreads threads_;
  et::HierarchicalAllocator allocator_;
  MethodLoader::Owner methods_;
  std::string poison_;
};

} // namespace etshared::runtime
