#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <executorch/runtime/core/hierarchical_allocator.h>
#include <executorch/runtime/executor/memory_manager.h>
#include <executorch/runtime/executor/method.h>

#include "program/backend_options.h"
#include "program/program.h"
#include "program/tensor.h"

namespace etshared::runtime {

/// A method over given arenas. Loading it may write initial values to them.
/// Not thread-safe; the program, the arenas and the allocator must outlive it.
class LoadedMethod {
 public:
  static Outcome<std::unique_ptr<LoadedMethod>> load(
      const SharedProgram& program,
      size_t method,
      et::HierarchicalAllocator* arenas,
      et::MemoryAllocator* allocator,
      BackendOptions options);

  /// Prepares a call with inputs that passed `check_inputs()`.
  Status set_inputs(const std::vector<InputValue>& inputs);

  /// Runs with the inputs that were set last. Outputs are the caller's.
  Status execute();
  Outcome<std::vector<OutputValue>> take_outputs();

 private:
  LoadedMethod(
      const MethodPlan& plan,
      et::HierarchicalAllocator* arenas,
      et::MemoryAllocator* allocator,
      BackendOptions options)
      : plan_(plan),
        memory_manager_(allocator, arenas),
        options_(std::move(options)) {}

  Status set_value(size_t index, const et::EValue& value);
  Status set_tensor(size_t index, const TensorView& view);
  Status give_memory_to_outputs();
  Outcome<OutputValue> take_tensor(size_t index);
  Failure failed(
      const char* action,
      et::Error code,
      const std::string& reason = {}) const;

  const MethodPlan& plan_;
  et::MemoryManager memory_manager_;
  /// Backends may keep pointers to what they were told.
  BackendOptions options_;
  std::optional<et::Method> method_;
  /// Copies of inputs that could not be used where they lay; outputs may be
  /// views of them until they are taken.
  std::vector<AlignedMemory> staged_;
  /// Memory for outputs that the plan leaves to the caller, by output.
  std::vector<AlignedMemory> output_memory_;
};

} // namespace etshared::runtime
