#include <nanobind/stl/string.h>

#include "python/bindings.h"
#include "python/convert.h"

namespace etshared::runtime {
namespace {

const char* class_name(FailureKind kind) {
  switch (kind) {
    case FailureKind::kInput:
      return "InputError";
    case FailureKind::kSessionPoisoned:
      return "SessionPoisonedError";
    case FailureKind::kStateMismatch:
      return "StateMismatchError";
    case FailureKind::kProgramFormat:
      return "ProgramFormatError";
    case FailureKind::kContextFormat:
      return "ContextFormatError";
    case FailureKind::kExecutorch:
      return "ExecutorchError";
    case FailureKind::kUnsupported:
      return "RuntimeFailure";
  }
  return "RuntimeFailure";
}

void raise(const FailureError& error) {
  const Failure& failure = error.failure;
  nb::dict options;
  if (failure.kind == FailureKind::kProgramFormat ||
      failure.kind == FailureKind::kContextFormat) {
    if (!error.path.empty()) {
      const nb::bytes path(error.path.data(), error.path.size());
      options["path"] = nb::module_::import_("pathlib").attr("Path")(
          nb::module_::import_("os").attr("fsdecode")(path));
    }
  } else {
    if (!failure.method_name.empty()) {
      options["method_name"] = to_text(failure.method_name);
    }
    if (failure.kind == FailureKind::kExecutorch) {
      options["code"] = static_cast<int>(failure.code);
    }
  }
  const nb::object type = nb::module_::import_("etshared_plugin.errors")
                              .attr(class_name(failure.kind));
  const nb::object instance = type(to_text(failure.message), **options);
  PyErr_SetObject(type.ptr(), instance.ptr());
}

} // namespace

void bind_errors(nb::module_&) {
  nb::register_exception_translator(
      [](const std::exception_ptr& pointer, void*) {
        try {
          std::rethrow_exception(pointer);
        } catch (const FailureError& error) {
          raise(error);
        }
      });
}

} // namespace etshared::runtime
