#include "program/tensor.h"

#include <algorithm>
#include <cstring>

#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>

namespace etshared::runtime {
namespace {

bool is_empty(const std::vector<int64_t>& sizes) {
  return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
}

struct Dim {
  int64_t size;
  int64_t stride; // in bytes
};

void copy_dims(
    const uint8_t* source,
    const Dim* dims,
    size_t num_dims,
    size_t itemsize,
    uint8_t*& target) {
  if (num_dims == 0) {
    std::memcpy(target, source, itemsize);
    target += itemsize;
    return;
  }
  if (num_dims == 1 && dims->stride == static_cast<int64_t>(itemsize)) {
    std::memcpy(target, source, itemsize * dims->size);
    target += itemsize * dims->size;
    return;
  }
  for (int64_t i = 0; i < dims->size; ++i) {
    copy_dims(source, dims + 1, num_dims - 1, itemsize, target);
    source += dims->stride;
  }
}

} // namespace

size_t nbytes_of(const TensorView& view) {
  size_t nbytes = et::elementSize(view.scalar_type);
  for (const int64_t size : view.sizes) {
    nbytes *= static_cast<size_t>(size);
  }
  return nbytes;
}

std::vector<int64_t> strides_of(
    const std::vector<int64_t>& sizes,
    const std::vector<uint8_t>& dim_order) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (auto dim = dim_order.rbegin(); dim != dim_order.rend(); ++dim) {
    strides[*dim] = stride;
    stride *= std::max<int64_t>(sizes[*dim], 1);
  }
  return strides;
}

bool is_laid_out(
    const TensorView& view,
    const std::vector<uint8_t>& dim_order) {
  if (is_empty(view.sizes)) {
    return true;
  }
  const std::vector<int64_t> strides = strides_of(view.sizes, dim_order);
  for (size_t i = 0; i < strides.size(); ++i) {
    if (view.sizes[i] != 1 && view.strides[i] != strides[i]) {
      return false;
    }
  }
  return true;
}

void copy_to(
    const TensorView& source,
    const std::vector<uint8_t>& dim_order,
    uint8_t* target) {
  if (is_empty(source.sizes)) {
    return;
  }
  const size_t itemsize = et::elementSize(source.scalar_type);
  const auto* data = static_cast<const uint8_t*>(source.data);
  if (is_laid_out(source, dim_order)) {
    size_t nbytes = itemsize;
    for (const int64_t size : source.sizes) {
      nbytes *= static_cast<size_t>(size);
    }
    std::memcpy(target, data, nbytes);
    return;
  }
  std::vector<Dim> dims;
  for (const uint8_t dim : dim_order) {
    dims.push_back(
        {source.sizes[dim],
         source.strides[dim] * static_cast<int64_t>(itemsize)});
  }
  copy_dims(data, dims.data(), dims.size(), itemsize, target);
}

std::string describe_sizes(const std::vector<int64_t>& sizes) {
  std::string text = "(";
  for (size_t i = 0; i < sizes.size(); ++i) {
    text += concat(i == 0 ? "" : ", ", sizes[i]);
  }
  return text + (sizes.size() == 1 ? ",)" : ")");
}

} // namespace etshared::runtime
