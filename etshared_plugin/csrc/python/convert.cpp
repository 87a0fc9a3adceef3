#include "python/convert.h"

#include <optional>

#include <nanobind/stl/string.h>

namespace etshared::runtime {
namespace {

using Code = nb::dlpack::dtype_code;

struct Exchange {
  ScalarType scalar_type;
  Code code;
  uint8_t bits;
};

constexpr Exchange kExchanges[] = {
    {ScalarType::Byte, Code::UInt, 8},
    {ScalarType::Char, Code::Int, 8},
    {ScalarType::Short, Code::Int, 16},
    {ScalarType::Int, Code::Int, 32},
    {ScalarType::Long, Code::Int, 64},
    {ScalarType::Half, Code::Float, 16},
    {ScalarType::Float, Code::Float, 32},
    {ScalarType::Double, Code::Float, 64},
    {ScalarType::Bool, Code::Bool, 8},
    {ScalarType::BFloat16, Code::Bfloat, 16},
    {ScalarType::UInt16, Code::UInt, 16},
    {ScalarType::UInt32, Code::UInt, 32},
    {ScalarType::UInt64, Code::UInt, 64},
};

std::optional<ScalarType> scalar_type_of(nb::dlpack::dtype dtype) {
  for (const Exchange& one : kExchanges) {
    if (dtype.code == static_cast<uint8_t>(one.code) &&
        dtype.bits == one.bits && dtype.lanes == 1) {
      return one.scalar_type;
    }
  }
  return std::nullopt;
}

nb::dlpack::dtype dtype_of(ScalarType scalar_type) {
  for (const Exchange& one : kExchanges) {
    if (scalar_type == one.scalar_type) {
      return {static_cast<uint8_t>(one.code), one.bits, 1};
    }
  }
  throw FailureError(Failure{
      FailureKind::kUnsupported,
      concat(
          "neither numpy nor torch take tensors of scalar type ",
          static_cast<int>(scalar_type))});
}

std::string python_type(nb::handle object) {
  return nb::cast<std::string>(nb::inst_name(object));
}

} // namespace

nb::str to_text(std::string_view text) {
  PyObject* decoded = PyUnicode_DecodeUTF8(
      text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  if (decoded == nullptr) {
    throw nb::python_error();
  }
  return nb::steal<nb::str>(decoded);
}

TensorView to_view(
    nb::handle object,
    const std::string& label,
    FailureKind kind,
    KeptArrays& kept) {
  const auto refuse = [&](const std::string& found, const std::string& wanted) {
    return FailureError(Failure{
        kind, concat(label, " is ", found, ", expected ", wanted)});
  };
  // Bits of a type that has no name in the buffer protocol, with that name.
  std::optional<ScalarType> named;
  nb::object array = nb::borrow(object);
  if (PyTuple_CheckExact(object.ptr()) && PyTuple_Size(object.ptr()) == 2) {
    named = ScalarType::BFloat16;
    array = nb::borrow<nb::tuple>(object)[0];
  }
  nb::ndarray<nb::ro> view;
  if (!nb::try_cast(array, view, /*convert=*/false)) {
    PyErr_Clear();
    throw refuse(concat("of type ", quoted(python_type(array))), "a tensor");
  }
  if (view.device_type() != nb::device::cpu::value) {
    throw refuse("on another device", "a tensor on the CPU; call its cpu()");
  }
  const auto scalar_type = named ? named : scalar_type_of(view.dtype());
  if (!scalar_type) {
    throw refuse(
        "of a dtype that ExecuTorch does not know", "a tensor of numbers");
  }
  TensorView result;
  result.data = view.data();
  result.scalar_type = *scalar_type;
  result.sizes.assign(view.shape_ptr(), view.shape_ptr() + view.ndim());
  result.strides.assign(view.stride_ptr(), view.stride_ptr() + view.ndim());
  kept.push_back(std::move(view));
  return result;
}

InputValue to_input(
    nb::handle object,
    const ValueInfo& expected,
    const std::string& method_name,
    KeptArrays& kept) {
  PyObject* raw = object.ptr();
  if (nb::isinstance<Omitted>(object)) {
    return Omitted{};
  }
  if (object.is_none()) {
    return None{};
  }
  if (PyBool_Check(raw)) {
    return raw == Py_True;
  }
  if (PyUnicode_Check(raw)) {
    return nb::cast<std::string>(object);
  }
  // numpy's scalars are floats or indices too, and arrays.
  const bool wants_tensor = expected.tag == et::Tag::Tensor;
  if (PyFloat_CheckExact(raw) || (!wants_tensor && PyFloat_Check(raw))) {
    return PyFloat_AsDouble(raw);
  }
  if (PyLong_CheckExact(raw) || (!wants_tensor && PyLong_Check(raw))) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(raw, &overflow);
    if (overflow == 0) {
      return static_cast<int64_t>(value);
    }
  }
  const std::string label =
      concat("entry point ", quoted(method_name), ": ", expected.label);
  try {
    return to_view(object, label, FailureKind::kInput, kept);
  } catch (FailureError& error) {
    error.failure.method_name = method_name;
    error.failure.code = et::Error::InvalidArgument;
    throw;
  }
}

nb::object to_array(
    void* data,
    ScalarType scalar_type,
    const std::vector<int64_t>& sizes,
    const std::vector<int64_t>& strides,
    nb::handle owner,
    bool as_torch) {
  const std::vector<size_t> shape(sizes.begin(), sizes.end());
  const auto make = [&]<typename Framework>(ScalarType exchanged) {
    return nb::ndarray<Framework>(
               data,
               shape.size(),
               shape.data(),
               owner,
               strides.data(),
               dtype_of(exchanged))
        .cast();
  };
  if (as_torch) {
    return make.operator()<nb::pytorch>(scalar_type);
  }
  return make.operator()<nb::numpy>(
      scalar_type == ScalarType::BFloat16 ? ScalarType::UInt16 : scalar_type);
}

nb::object to_python(OutputValue value, bool as_torch) {
  struct Converter {
    bool as_torch;

    nb::object operator()(None) const {
      return nb::none();
    }
    nb::object operator()(bool one) const {
      return nb::bool_(one);
    }
    nb::object operator()(int64_t one) const {
      return nb::int_(one);
    }
    nb::object operator()(double one) const {
      return nb::float_(one);
    }
    nb::object operator()(const std::string& one) const {
      return to_text(one);
    }
    nb::object operator()(OwnedTensor& one) const {
      auto* memory = new AlignedMemory(std::move(one.memory));
      const nb::capsule owner(memory, [](void* pointer) noexcept {
        delete static_cast<AlignedMemory*>(pointer);
      });
      return to_array(
          memory->data(),
          one.scalar_type,
          one.sizes,
          one.strides,
          owner,
          as_torch);
    }
  };
  return std::visit(Converter{as_torch}, value);
}

} // namespace etshared::runtime
