#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/log_listeners.h"
#include "python/bindings.h"
#include "python/convert.h"

namespace etshared::runtime {
namespace {

using namespace nb::literals;

const char* kind_name(et::Tag tag) {
  switch (tag) {
    case et::Tag::Tensor:
      return "tensor";
    case et::Tag::Int:
      return "int";
    case et::Tag::Double:
      return "float";
    case et::Tag::Bool:
      return "bool";
    case et::Tag::String:
      return "str";
    default:
      return "None";
  }
}

PyProgram open_bytes(
    Outcome<std::shared_ptr<const FileBytes>> bytes,
    const PyDataFiles& data_files,
    bool packed_weights,
    const std::string& path) {
  auto program = value_or_throw(
      SharedProgram::open(
          value_or_throw(std::move(bytes), path), data_files.files),
      path);
  auto loader =
      value_or_throw(MethodLoader::create(program, packed_weights), path);
  return {std::move(program), std::move(loader)};
}

const MethodPlan& method_at(const PyProgram& self, size_t method) {
  if (method >= self.program->methods().size()) {
    throw nb::index_error("no such method");
  }
  return self.program->methods()[method];
}

} // namespace

void bind_program(nb::module_& module) {
  module.def(
      "hide_info_log",
      &hide_info,
      "From now on, ExecuTorch logs warnings and errors only.");

  nb::class_<ValueInfo>(
      module, "Value", "One flat input or output of a method.")
      .def_prop_ro(
          "kind", [](const ValueInfo& self) { return kind_name(self.tag); })
      .def_prop_ro(
          "label", [](const ValueInfo& self) { return to_text(self.label); })
      .def_prop_ro(
          "dtype",
          [](const ValueInfo& self) {
            return std::string(dtype_name(self.scalar_type));
          })
      .def_ro("sizes", &ValueInfo::sizes)
      .def_ro("is_dynamic", &ValueInfo::is_dynamic);

  nb::class_<PyProgram>(
      module, "Program", "A verified program, mapped or owned.")
      .def_static(
          "open",
          [](const nb::bytes& given_path,
             const PyDataFiles& data_files,
             bool packed_weights) {
            const std::string path(given_path.c_str(), given_path.size());
            const WithoutGil unlocked;
            return open_bytes(
                FileBytes::map(path), data_files, packed_weights, path);
          },
          "path"_a,
          "data_files"_a,
          "packed_weights"_a)
      .def_static(
          "from_bytes",
          [](const nb::bytes& data,
             const PyDataFiles& data_files,
             bool packed_weights) {
            const char* start = data.c_str();
            const size_t size = data.size();
            const WithoutGil unlocked;
            return open_bytes(
                FileBytes::copy(start, size), data_files, packed_weights, "");
          },
          "data"_a,
          "data_files"_a,
          "packed_weights"_a)
      .def_prop_ro(
          "method_names",
          [](const PyProgram& self) {
            std::vector<nb::str> names;
            for (const MethodPlan& method : self.program->methods()) {
              names.push_back(to_text(method.name));
            }
            return names;
          })
      .def_prop_ro(
          "generated_method",
          [](const PyProgram& self) { return self.program->generated_method(); })
      .def_prop_ro(
          "context",
          [](const PyProgram& self) -> std::optional<nb::bytes> {
            if (!self.program->context()) {
              return std::nullopt;
            }
            const auto bytes = self.program->context_bytes();
            return nb::bytes(bytes.data(), bytes.size());
          })
      .def(
          "inputs",
          [](const PyProgram& self, size_t method) {
            return method_at(self, method).inputs;
          },
          "method"_a)
      .def(
          "outputs",
          [](const PyProgram& self, size_t method) {
            return method_at(self, method).outputs;
          },
          "method"_a)
      .def(
          "named_data",
          [](const nb::object& self, const std::string& key) -> nb::object {
            const auto data =
                nb::cast<const PyProgram&>(self).program->named_data(key.c_str());
            if (!data) {
              return nb::none();
            }
            const nb::object array = nb::cast(
                nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(
                    data->data(), {data->size()}, self));
            return nb::steal(PyMemoryView_FromObject(array.ptr()));
          },
          "key"_a,
          nb::sig("def named_data(self, key: str) -> memoryview | None"),
          "The bytes under a key, as they lie in memory.")
      .def("stats", [](const PyProgram& self) { return self.loader->stats(); })
      .def_prop_ro(
          "has_shareable",
          [](const PyProgram& self) { return self.loader->has_shareable(); })
      .def(
          "pack",
          [](const PyProgram& self) {
            Packing packing;
            {
              const WithoutGil unlocked;
              packing = self.loader->pack();
            }
            return nb::make_tuple(
                packing.is_shared, to_text(packing.failure));
          },
          nb::sig("def pack(self) -> tuple[bool, str]"),
          "Whether any method shares, and what could not be packed.")
      .def_prop_ro(
          "packed_descriptor",
          [](const PyProgram& self) {
            const WithoutGil unlocked;
            return self.loader->packed_descriptor();
          })
      .def(
          "use_packed_file",
          [](const PyProgram& self, int descriptor) {
            FileUse use;
            {
              const WithoutGil unlocked;
              use = self.loader->use_file(descriptor);
            }
            return nb::make_tuple(use.is_intact, to_text(use.problem));
          },
          "descriptor"_a,
          nb::sig(
              "def use_packed_file(self, descriptor: int) -> tuple[bool, str]"),
          "Whether the file could be read, and why it is not used.");
}

} // namespace etshared::runtime
