// Calls methods of a program through ExecuTorch's own Module, with shared
// arenas, and prints what they return.
//
//   stock_module PROGRAM < CALLS
//
// A line of CALLS is a method's name and its inputs; a tensor is its type (f or
// l), its number of dimensions, its sizes and its values. Outputs are printed
// in the same form, floats in hexadecimal.

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::extension::make_tensor_ptr;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::EValue;

namespace {

template <typename T>
std::vector<T> read_values(std::istream& in, size_t count) {
  std::vector<T> values(count);
  for (T& value : values) {
    in >> value;
  }
  return values;
}

TensorPtr read_tensor(std::istream& in, char type) {
  size_t dim = 0;
  in >> dim;
  const auto sizes = read_values<SizesType>(in, dim);
  size_t numel = 1;
  for (const SizesType size : sizes) {
    numel *= size;
  }
  return type == 'l' ? make_tensor_ptr(sizes, read_values<int64_t>(in, numel))
                     : make_tensor_ptr(sizes, read_values<float>(in, numel));
}

bool print_tensor(const executorch::aten::Tensor& tensor) {
  const bool is_long = tensor.scalar_type() == ScalarType::Long;
  if (!is_long && tensor.scalar_type() != ScalarType::Float) {
    return false;
  }
  std::printf(" %c %zd", is_long ? 'l' : 'f', tensor.dim());
  for (const SizesType size : tensor.sizes()) {
    std::printf(" %d", static_cast<int>(size));
  }
  for (ssize_t i = 0; i < tensor.numel(); ++i) {
    if (is_long) {
      std::printf(
          " %lld", static_cast<long long>(tensor.const_data_ptr<int64_t>()[i]));
    } else {
      std::printf(" %a", tensor.const_data_ptr<float>()[i]);
    }
  }
  return true;
}

bool call(Module& module, const std::string& line) {
  std::istringstream in(line);
  std::string name;
  in >> name;
  std::vector<TensorPtr> tensors;
  for (char type = 0; in >> type;) {
    tensors.push_back(read_tensor(in, type));
  }
  std::vector<EValue> inputs(tensors.begin(), tensors.end());
  const auto outputs = module.execute(name, inputs);
  if (!outputs.ok()) {
    std::fprintf(stderr, "%s: %d\n", name.c_str(), (int)outputs.error());
    return false;
  }
  std::printf("%s", name.c_str());
  for (const EValue& output : outputs.get()) {
    if (output.isTensor() && !print_tensor(output.toTensor())) {
      return false;
    }
  }
  std::printf("\n");
  return true;
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    return 2;
  }
  Module module(
      argv[1],
      Module::LoadMode::File,
      /*event_tracer=*/nullptr,
      /*memory_allocator=*/nullptr,
      /*temp_allocator=*/nullptr,
      /*share_memory_arenas=*/true);
  for (std::string line; std::getline(std::cin, line);) {
    if (!call(module, line)) {
      return 1;
    }
  }
  return 0;
}
