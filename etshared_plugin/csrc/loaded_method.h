#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/core/hierarchical_allocator.h>
#include <executorch/runtime/executor/memory_manager.h>
#include <executorch/runtime/executor/method.h>

#include "program.h"
#include "tensor.h"

namespace etshared::runtime {

/// A method over given arenas. Loading it may write initial values to them.
/// Not thread-safe; the program and the arenas must outlive it.
class LoadedMethod {
 public:
  static Outcome<std::unique_ptr<LoadedMethod>> load(
      const SharedProgram& program,
      size_t method,
      et::HierarchicalAllocator* arenas);

  /// Prepares a call with inputs that passed `check_inputs()`.
  Status set_inputs(const std::vector<InputValue>& inputs);

  /// Runs with the inputs that were set last. Outputs are the caller's.
  Status execute();
  Outcome<std::vector<OutputValue>> take_outputs();

 private:
  LoadedMethod(const MethodPlan& plan, et::HierarchicalAllocator* arenas)
      : plan_(plan), memory_manager_(&allocator_, arenas) {}

  Status set_tensor(size_t index, const TensorView& view);
  Status give_memory_to_outputs();
  Outcome<OutputValue> take_tensor(size_t index);
  Failure failed(const char* action, et::Error code) const;

  const MethodPlan& plan_;
  executorch::extension::MallocMemoryAllocator allocator_;
  et::MemoryManager memory_manager_;
  std::optional<et::Method> method_;
  /// Copies of inputs that could not be used where they lay; outputs may be
  /// views of them until they are taken.
  std::vector<AlignedMemory> staged_;
  /// Memory for outputs that the plan leaves to the caller, by output.
  std::vector<AlignedMemory> output_memory_;
};

} // namespace etshared::runtime
