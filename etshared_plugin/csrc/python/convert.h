#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "program/method_plan.h"
#include "program/tensor.h"

namespace etshared::runtime {

namespace nb = ::nanobind;

/// Carries a failure to Python, where it becomes one of errors.py's classes.
class FailureError : public std::exception {
 public:
  explicit FailureError(Failure failure, std::string path = {})
      : failure(std::move(failure)), path(std::move(path)) {}

  const char* what() const noexcept override {
    return failure.message.c_str();
  }

  Failure failure;
  std::string path;
};

template <typename T>
T value_or_throw(Outcome<T> outcome, const std::string& path = {}) {
  if (!outcome.ok()) {
    throw FailureError(std::move(outcome.failure()), path);
  }
  return std::move(outcome.value());
}

/// Text from a file, which may be no UTF-8.
nb::str to_text(std::string_view text);

/// Keeps the caller's tensors alive while views of them are in use.
using KeptArrays = std::vector<nb::ndarray<nb::ro>>;

/// `label` is how messages call the value. The GIL is held.
InputValue to_input(
    nb::handle object,
    const ValueInfo& expected,
    const std::string& method_name,
    KeptArrays& kept);

/// A view of any array-like; throws a FailureError of this kind otherwise.
TensorView to_view(
    nb::handle object,
    const std::string& label,
    FailureKind kind,
    KeptArrays& kept);

/// Hands the memory to Python: numpy, bfloat16 as uint16, or torch.
nb::object to_python(OutputValue value, bool as_torch);

/// An array over `data`, which `owner` keeps alive.
nb::object to_array(
    void* data,
    ScalarType scalar_type,
    const std::vector<int64_t>& sizes,
    const std::vector<int64_t>& strides,
    nb::handle owner,
    bool as_torch);

} // namespace etshared::runtime
