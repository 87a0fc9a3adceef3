#include <nanobind/stl/string.h>

#include "python/bindings.h"
#include "python/convert.h"

namespace etshared::runtime {

void bind_stats(nb::module_& module) {
  nb::class_<MethodStats>(
      module, "MethodStats", "What loading one method has taken.")
      .def_ro("num_loads", &MethodStats::num_loads)
      .def_ro("load_seconds", &MethodStats::load_seconds)
      .def_ro("pack_seconds", &MethodStats::pack_seconds)
      .def_ro("num_packed", &MethodStats::num_packed)
      .def_ro("packed_nbytes", &MethodStats::packed_nbytes)
      .def_ro("num_from_disk", &MethodStats::num_from_disk)
      .def_ro("from_disk_nbytes", &MethodStats::from_disk_nbytes)
      .def_ro("num_reused", &MethodStats::num_reused)
      .def_ro("reused_nbytes", &MethodStats::reused_nbytes)
      .def_prop_ro("obstacle", [](const MethodStats& self) {
        return to_text(self.obstacle);
      });
}

} // namespace etshared::runtime
