#include "python/bindings.h"

NB_MODULE(_native, module) {
  // Programs and sessions that live until the interpreter ends are no leaks.
  nanobind::set_leak_warnings(false);
  module.doc() = "Programs with shared state over ExecuTorch 1.5.1.";
  etshared::runtime::bind_errors(module);
  etshared::runtime::bind_stats(module);
  etshared::runtime::bind_packing(module);
  etshared::runtime::bind_data_files(module);
  etshared::runtime::bind_program(module);
  etshared::runtime::bind_session(module);
}
