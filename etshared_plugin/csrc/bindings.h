#pragma once

#include <memory>

#include <nanobind/nanobind.h>

#include "program.h"

namespace etshared::runtime {

namespace nb = ::nanobind;

/// What Python holds of a program.
struct PyProgram {
  std::shared_ptr<const SharedProgram> program;
};

void bind_errors(nb::module_& module);
void bind_program(nb::module_& module);
void bind_session(nb::module_& module);

} // namespace etshared::runtime
