#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/bindings.h"
#include "python/convert.h"
#include "session/session.h"

namespace etshared::runtime {
namespace {

using namespace nb::literals;

/// ExecuTorch may log while it holds locks, and logging may need the GIL: the
/// GIL is released whenever the session, or ExecuTorch, is at work.
class PySession {
 public:
  PySession(const PyProgram& program, bool in_caller) {
    const WithoutGil unlocked;
    session_ = value_or_throw(Session::create(
        program.loader,
        in_caller ? SessionThreads::kCaller : SessionThreads::kPool));
  }
  ~PySession() {
    const WithoutGil unlocked;
    session_.reset();
  }
  PySession(const PySession&) = delete;
  PySession& operator=(const PySession&) = delete;

  nb::list call(size_t method, const nb::list& inputs, bool as_torch) {
    const MethodPlan& plan = method_at(method);
    KeptArrays kept;
    std::vector<InputValue> values;
    values.reserve(inputs.size());
    for (size_t i = 0; i < inputs.size() && i < plan.inputs.size(); ++i) {
      values.push_back(to_input(inputs[i], plan.inputs[i], plan.name, kept));
    }
    values.resize(inputs.size());
    std::vector<OutputValue> outputs;
    {
      const WithoutGil unlocked;
      outputs = value_or_throw(session_->call(method, values));
    }
    nb::list result;
    for (OutputValue& output : outputs) {
      result.append(to_python(std::move(output), as_torch));
    }
    return result;
  }

  void load(size_t method) {
    method_at(method);
    const WithoutGil unlocked;
    value_or_throw(session_->load(method));
  }

  bool is_loaded(size_t method) {
    method_at(method);
    const WithoutGil unlocked;
    return session_->is_loaded(method);
  }

  void reset() {
    const WithoutGil unlocked;
    value_or_throw(session_->reset());
  }

  void reset_buffers(const std::vector<size_t>& buffers) {
    check_exist(buffers);
    const WithoutGil unlocked;
    value_or_throw(session_->reset(buffers));
  }

  nb::list snapshot(const std::vector<size_t>& buffers) {
    check_exist(buffers);
    std::vector<OwnedTensor> tensors;
    {
      const WithoutGil unlocked;
      tensors = value_or_throw(session_->snapshot(buffers));
    }
    nb::list result;
    for (OwnedTensor& tensor : tensors) {
      result.append(
          to_python(OutputValue(std::move(tensor)), /*as_torch=*/false));
    }
    return result;
  }

  void restore(const std::vector<std::pair<size_t, nb::object>>& values) {
    KeptArrays kept;
    std::vector<std::pair<size_t, TensorView>> views;
    for (const auto& [index, object] : values) {
      views.emplace_back(index, view_for(index, object, kept));
    }
    const WithoutGil unlocked;
    value_or_throw(session_->restore(views));
  }

  void assign(size_t index, const nb::object& value) {
    KeptArrays kept;
    const TensorView view = view_for(index, value, kept);
    const WithoutGil unlocked;
    value_or_throw(session_->assign(index, view));
  }

  nb::object view(size_t index, bool as_torch) {
    const BufferRecord& buffer = buffer_at(index);
    const std::vector<int64_t> sizes(buffer.sizes.begin(), buffer.sizes.end());
    const nb::capsule owner(
        new std::shared_ptr<Arenas>(session_->arenas()),
        [](void* pointer) noexcept {
          delete static_cast<std::shared_ptr<Arenas>*>(pointer);
        });
    return to_array(
        session_->address(buffer),
        buffer.scalar_type,
        sizes,
        strides_of(sizes, buffer.dim_order),
        owner,
        as_torch);
  }

 private:
  const MethodPlan& method_at(size_t method) const {
    if (method >= session_->program()->methods().size()) {
      throw nb::index_error("no such method");
    }
    return session_->program()->methods()[method];
  }

  const BufferRecord& buffer_at(size_t index) const {
    const auto& context = session_->program()->context();
    if (!context || index >= context->buffers.size()) {
      throw nb::index_error("no such buffer");
    }
    return context->buffers[index];
  }

  void check_exist(const std::vector<size_t>& buffers) const {
    for (const size_t buffer : buffers) {
      buffer_at(buffer);
    }
  }

  TensorView view_for(
      size_t index,
      const nb::object& object,
      KeptArrays& kept) const {
    return to_view(
        object,
        concat("the value for state ", quoted(buffer_at(index).fqn)),
        FailureKind::kStateMismatch,
        kept);
  }

  std::unique_ptr<Session> session_;
};

} // namespace

void bind_session(nb::module_& module) {
  nb::class_<Omitted>(
      module, "Omitted", "Stands for an input that export recorded.")
      .def(nb::init<>());

  nb::class_<PySession>(
      module, "Session", "Arenas and loaded methods: one life of the state.")
      .def(nb::init<const PyProgram&, bool>(), "program"_a, "in_caller"_a)
      .def(
          "call",
          &PySession::call,
          "method"_a,
          "inputs"_a,
          "as_torch"_a,
          nb::sig("def call(self, method: int, inputs: list[object], "
                  "as_torch: bool) -> list[object]"))
      .def("load", &PySession::load, "method"_a)
      .def("is_loaded", &PySession::is_loaded, "method"_a)
      .def("reset", &PySession::reset)
      .def("reset_buffers", &PySession::reset_buffers, "buffers"_a)
      .def(
          "snapshot",
          &PySession::snapshot,
          "buffers"_a,
          nb::sig("def snapshot(self, buffers: Sequence[int]) -> list[object]"))
      .def("restore", &PySession::restore, "values"_a)
      .def("assign", &PySession::assign, "buffer"_a, "value"_a)
      .def("view", &PySession::view, "buffer"_a, "as_torch"_a);
}

} // namespace etshared::runtime
