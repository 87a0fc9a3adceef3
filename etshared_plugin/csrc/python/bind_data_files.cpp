#include <nanobind/stl/string.h>

#include "python/bindings.h"
#include "python/convert.h"

namespace etshared::runtime {

using namespace nb::literals;

void bind_data_files(nb::module_& module) {
  nb::class_<PyDataFiles>(
      module, "DataFiles", "What files beside a program hold, verified.")
      .def(nb::init<>())
      .def(
          "add_path",
          [](const PyDataFiles& self, const nb::bytes& given_path) {
            const std::string path(given_path.c_str(), given_path.size());
            const WithoutGil unlocked;
            value_or_throw(
                self.files->add(
                    value_or_throw(FileBytes::map(path), path), ""),
                path);
          },
          "path"_a)
      .def(
          "add_bytes",
          [](const PyDataFiles& self,
             const nb::bytes& data,
             const std::string& name) {
            const char* start = data.c_str();
            const size_t size = data.size();
            const WithoutGil unlocked;
            value_or_throw(
                self.files->add(
                    value_or_throw(FileBytes::copy(start, size), ""), name),
                "");
          },
          "data"_a,
          "name"_a);
}

} // namespace etshared::runtime
