#pragma once

#include <set>

#include "generated/program_generated.h"
#include "program/method_plan.h"

namespace etshared::runtime {

/// What the instructions of one method do with the memory of its values. All
/// indices must be those of values that exist.
class ValueUses {
 public:
  ValueUses(
      const executorch_flatbuffer::ExecutionPlan& plan,
      MethodPlan& method)
      : plan_(plan), method_(method) {}

  /// Says that an instruction reads or writes a tensor, or those of a list.
  void use(int32_t index);

  /// Says that an instruction writes a tensor, or those of a list. False if one is
  /// a constant.
  [[nodiscard]] bool write(int32_t index);

  /// Says that a value becomes a view, with the memory of what it is a view of.
  void give(int32_t index) {
    is_given_.insert(index);
  }

  /// Says that a value is replaced by another.
  void move_to(int32_t index) {
    is_moved_to_.insert(index);
  }

  /// Writes down, when all has been said, which inputs are written, which outputs
  /// have memory, and why the method cannot run if values have none.
  void note();

 private:
  void for_each_tensor(int32_t index, const auto& action);
  bool is_border(int32_t index) const;
  void note_unplanned_values();
  void note_border();
  void obstruct(const std::string& what);

  const executorch_flatbuffer::ExecutionPlan& plan_;
  MethodPlan& method_;
  std::set<int32_t> is_used_;
  std::set<int32_t> is_written_;
  std::set<int32_t> is_given_;
  std::set<int32_t> is_moved_to_;
};

} // namespace etshared::runtime
