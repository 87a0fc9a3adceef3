#include "program/tensor_layout.h"

#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>
#include <executorch/runtime/core/exec_aten/util/tensor_dimension_limit.h>

namespace etshared::runtime {

namespace et = ::executorch::runtime;

std::optional<uint64_t> dense_nbytes(
    const std::vector<int32_t>& sizes,
    ScalarType scalar_type) {
  if (sizes.size() > et::kTensorDimensionLimit || !et::isValid(scalar_type)) {
    return std::nullopt;
  }
  uint64_t nbytes = et::elementSize(scalar_type);
  for (const int32_t size : sizes) {
    if (size < 0 ||
        __builtin_mul_overflow(nbytes, static_cast<uint64_t>(size), &nbytes)) {
      return std::nullopt;
    }
  }
  return nbytes;
}

bool is_dim_order(const std::vector<uint8_t>& order, size_t num_dims) {
  std::vector<bool> is_seen(num_dims, false);
  for (const uint8_t dim : order) {
    if (dim >= num_dims || is_seen[dim]) {
      return false;
    }
    is_seen[dim] = true;
  }
  return order.size() == num_dims;
}

} // namespace etshared::runtime
