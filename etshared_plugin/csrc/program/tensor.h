#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/arenas.h"
#include "base/failure.h"
#include "base/scalar_type.h"

namespace etshared::runtime {

/// Somebody else's tensor. Strides count elements.
struct TensorView {
  const void* data = nullptr;
  ScalarType scalar_type = ScalarType::Undefined;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

/// A tensor in memory of its own. Strides count elements.
struct OwnedTensor {
  AlignedMemory memory;
  ScalarType scalar_type = ScalarType::Undefined;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

/// The caller left a value out that export recorded anyway.
struct Omitted {};
struct None {};

using InputValue =
    std::variant<Omitted, None, bool, int64_t, double, std::string, TensorView>;
using OutputValue =
    std::variant<None, bool, int64_t, double, std::string, OwnedTensor>;

size_t nbytes_of(const TensorView& view);

/// Strides of a tensor that fills its memory in the given order.
std::vector<int64_t> strides_of(
    const std::vector<int64_t>& sizes,
    const std::vector<uint8_t>& dim_order);

/// Whether the tensor fills its memory in the given order without gaps.
bool is_laid_out(const TensorView& view, const std::vector<uint8_t>& dim_order);

/// Copies a tensor of any strides to memory that it fills in the given order.
void copy_to(
    const TensorView& source,
    const std::vector<uint8_t>& dim_order,
    uint8_t* target);

/// `float32 (2, 3)` for messages.
std::string describe_sizes(const std::vector<int64_t>& sizes);

} // namespace etshared::runtime
