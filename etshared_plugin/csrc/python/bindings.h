#pragma once

#include <memory>

#include <nanobind/nanobind.h>

#include "packing/method_loader.h"
#include "python/without_gil.h"

namespace etshared::runtime {

namespace nb = ::nanobind;

/// What Python holds of a program.
struct PyProgram {
  std::shared_ptr<const SharedProgram> program;
  std::shared_ptr<MethodLoader> loader;
};

/// Files with data, collected before a program takes them.
struct PyDataFiles {
  std::shared_ptr<DataFiles> files = std::make_shared<DataFiles>();
};

void bind_data_files(nb::module_& module);
void bind_errors(nb::module_& module);
void bind_packing(nb::module_& module);
void bind_program(nb::module_& module);
void bind_session(nb::module_& module);
void bind_stats(nb::module_& module);

} // namespace etshared::runtime
