#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <executorch/runtime/core/tag.h>

#include "base/failure.h"
#include "base/scalar_type.h"

namespace executorch_flatbuffer {
struct ExecutionPlan;
struct Program;
} // namespace executorch_flatbuffer

namespace etshared::runtime {

/// One flat input or output of a method, as the program plans it.
struct ValueInfo {
  et::Tag tag;
  /// How messages call it, for example `input 'x'`.
  std::string label;

  // Tensors; the sizes are upper bounds where the shape is dynamic. The record
  // may narrow what an input's sizes may be.
  ScalarType scalar_type = ScalarType::Undefined;
  std::vector<int32_t> sizes;
  std::vector<int32_t> min_sizes;
  std::vector<int32_t> max_sizes;
  std::vector<uint8_t> dim_order;
  uint64_t nbytes = 0;
  bool is_dynamic = false;
  bool is_planned = false;
  /// The method's own instructions write to this input.
  bool is_written = false;

  // Everything else: the value that export recorded.
  int64_t int_value = 0;
  double double_value = 0;
  bool bool_value = false;
  std::string string_value;
};

struct DelegateInfo {
  std::string backend_id;
  bool is_in_segment;
  uint32_t payload_index;
};

/// State that a stock program initialises whenever a method is loaded.
struct InitialRange {
  uint32_t mem_id;
  uint64_t offset;
  uint64_t nbytes;
  uint32_t data_index;
};

/// A dimension of one input that has the size of a dimension of another.
struct TiedSize {
  size_t input;
  size_t dim;
  size_t first_input;
  size_t first_dim;
};

struct MethodPlan {
  std::string name;
  std::vector<ValueInfo> inputs;
  std::vector<TiedSize> tied_sizes;
  std::vector<ValueInfo> outputs;
  /// Bytes of mem_id 1, 2, …
  std::vector<uint64_t> arena_nbytes;
  std::vector<DelegateInfo> delegates;
  std::vector<std::string> operators;
  std::vector<InitialRange> initial_ranges;
  /// Keys of constants that lie outside of the program.
  std::vector<std::string> external_constants;
  /// Why this method cannot be loaded, although the program is well-formed.
  std::optional<Failure> obstacle;
};

/// Reads a plan out of a program that has passed the FlatBuffers verifier, and
/// rejects what ExecuTorch 1.5.1 would dereference without a check.
Outcome<MethodPlan> read_method_plan(
    const executorch_flatbuffer::ExecutionPlan& plan);

/// Checks that every instruction refers to values that exist and have memory.
Status check_instructions(
    const executorch_flatbuffer::ExecutionPlan& plan,
    MethodPlan& method);

} // namespace etshared::runtime
