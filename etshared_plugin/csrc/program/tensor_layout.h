#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/scalar_type.h"

namespace etshared::runtime {

/// How a dense tensor lies in memory.
struct TensorLayout {
  std::vector<int32_t> sizes;
  std::vector<uint8_t> dim_order;
  ScalarType scalar_type;
};

/// Bytes of a dense tensor; absent when ExecuTorch can have none of these sizes
/// and this type.
std::optional<uint64_t> dense_nbytes(
    const std::vector<int32_t>& sizes,
    ScalarType scalar_type);

/// Whether the order names each of the dimensions once.
bool is_dim_order(const std::vector<uint8_t>& order, size_t num_dims);

} // namespace etshared::runtime
