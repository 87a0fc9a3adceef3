#include "method/loaded_method.h"

#include <algorithm>
#include <cstring>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>
#include <executorch/runtime/kernel/operator_registry.h>

#include "base/log_listeners.h"

namespace etshared::runtime {
namespace {

using ::executorch::aten::Tensor;
using ::executorch::aten::TensorImpl;

constexpr size_t kPage = 4096;

Failure out_of_memory(const MethodPlan& plan, size_t nbytes) {
  return Failure{
      FailureKind::kExecutorch,
      concat(
          "entry point ", quoted(plan.name), ": cannot allocate ", nbytes,
          " bytes"),
      plan.name,
      et::Error::MemoryAllocationFailed};
}

Status check_registrations(const MethodPlan& plan) {
  const auto missing = [&](const std::string& what, et::Error code) {
    return Failure{
        FailureKind::kExecutorch,
        concat(
            "entry point ", quoted(plan.name), " needs ", what,
            ", which is not registered; load the library that has it first"),
        plan.name,
        code};
  };
  const auto kernels = et::get_registered_kernels();
  for (const std::string& name : plan.operators) {
    const bool is_registered =
        std::any_of(kernels.begin(), kernels.end(), [&](const et::Kernel& one) {
          return one.name_ != nullptr && name == one.name_;
        });
    if (!is_registered) {
      return missing(
          concat("the kernel ", quoted(name)), et::Error::OperatorMissing);
    }
  }
  for (const DelegateInfo& delegate : plan.delegates) {
    if (et::get_backend_class(delegate.backend_id.c_str()) == nullptr) {
      return missing(
          concat("the backend ", quoted(delegate.backend_id)),
          et::Error::NotFound);
    }
  }
  return success();
}

Status check_external_constants(
    const MethodPlan& plan,
    const DataFiles& data_files) {
  for (const std::string& key : plan.external_constants) {
    if (!data_files.contains(key)) {
      return Failure{
          FailureKind::kInput,
          concat(
              "entry point ", quoted(plan.name), " needs the constant ", quoted(key),
              ", which lies outside of the program and in none of its data_files"),
          plan.name};
    }
  }
  return success();
}

/// Whether kernels can work on the caller's memory itself.
bool is_usable_in_place(const TensorView& view, const ValueInfo& info) {
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  if (info.is_planned) {
    return true; // set_input copies it
  }
  const size_t end = address + nbytes_of(view);
  return !info.is_written &&
      address % et::elementSize(info.scalar_type) == 0 &&
      (end - 1) / kPage == (end - 1 + kReadablePast) / kPage;
}

} // namespace

Failure LoadedMethod::failed(
    const char* action,
    et::Error code,
    const std::string& reason) const {
  return Failure{
      FailureKind::kExecutorch,
      concat(
          "entry point ", quoted(plan_.name), ": cannot ", action, ": ",
          et::to_string(code), reason.empty() ? "" : ": ", reason),
      plan_.name,
      code};
}

Outcome<std::unique_ptr<LoadedMethod>> LoadedMethod::load(
    const SharedProgram& program,
    size_t method,
    et::HierarchicalAllocator* arenas,
    et::MemoryAllocator* allocator,
    BackendOptions options) {
  const MethodPlan& plan = program.methods()[method];
  if (plan.obstacle) {
    return Failure(*plan.obstacle);
  }
  ETSHARED_RETURN_IF_FAILED(check_registrations(plan));
  ETSHARED_RETURN_IF_FAILED(check_external_constants(plan, program.data_files()));
  ETSHARED_RETURN_IF_FAILED(program.check_payloads(method));
  std::unique_ptr<LoadedMethod> loaded(
      new LoadedMethod(plan, arenas, allocator, std::move(options)));
  et::LoadBackendOptionsMap options_map;
  const et::Error error = loaded->options_.show_in(options_map);
  if (error != et::Error::Ok) {
    return loaded->failed("give options to its backends", error);
  }
  const FailureReason reason;
  auto result = program.program().load_method(
      plan.name.c_str(),
      &loaded->memory_manager_,
      /*event_tracer=*/nullptr,
      program.data_files().is_empty() ? nullptr : &program.data_files(),
      &options_map);
  if (!result.ok()) {
    return loaded->failed("load it", result.error(), reason.text());
  }
  loaded->method_.emplace(std::move(result.get()));
  return loaded;
}

Status LoadedMethod::set_inputs(const std::vector<InputValue>& inputs) {
  staged_.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ValueInfo& info = plan_.inputs[i];
    et::EValue value;
    switch (info.tag) {
      case et::Tag::Tensor: {
        ETSHARED_RETURN_IF_FAILED(
            set_tensor(i, *std::get_if<TensorView>(&inputs[i])));
        continue;
      }
      case et::Tag::Int:
        value = et::EValue(info.int_value);
        break;
      case et::Tag::Double:
        value = et::EValue(info.double_value);
        break;
      case et::Tag::Bool:
        value = et::EValue(info.bool_value);
        break;
      case et::Tag::String: {
        // An EValue of a string points to an ArrayRef that it does not own.
        executorch::aten::ArrayRef<char> text(
            info.string_value.data(), info.string_value.size());
        ETSHARED_RETURN_IF_FAILED(set_value(i, et::EValue(&text)));
        continue;
      }
      default:
        break;
    }
    ETSHARED_RETURN_IF_FAILED(set_value(i, value));
  }
  return give_memory_to_outputs();
}

Status LoadedMethod::set_value(size_t index, const et::EValue& value) {
  const FailureReason reason;
  const auto error = method_->set_input(value, index);
  if (error == et::Error::Ok) {
    return success();
  }
  const std::string action = concat("set ", plan_.inputs[index].label);
  return failed(action.c_str(), error, reason.text());
}

Status LoadedMethod::set_tensor(size_t index, const TensorView& view) {
  const ValueInfo& info = plan_.inputs[index];
  void* data = const_cast<void*>(view.data);
  if (!is_laid_out(view, info.dim_order) || !is_usable_in_place(view, info)) {
    const size_t nbytes = nbytes_of(view);
    AlignedMemory memory = AlignedMemory::allocate(nbytes);
    if (!memory) {
      return out_of_memory(plan_, nbytes);
    }
    copy_to(view, info.dim_order, memory.data());
    data = memory.data();
    staged_.push_back(std::move(memory));
  }
  std::vector<int32_t> sizes(view.sizes.begin(), view.sizes.end());
  const std::vector<int64_t> wide = strides_of(view.sizes, info.dim_order);
  std::vector<int32_t> strides(wide.begin(), wide.end());
  std::vector<uint8_t> dim_order = info.dim_order;
  TensorImpl impl(
      info.scalar_type,
      static_cast<ssize_t>(sizes.size()),
      sizes.data(),
      data,
      dim_order.data(),
      strides.data());
  return set_value(index, et::EValue(Tensor(&impl)));
}

Status LoadedMethod::give_memory_to_outputs() {
  output_memory_.clear();
  output_memory_.resize(plan_.outputs.size());
  for (size_t i = 0; i < plan_.outputs.size(); ++i) {
    const ValueInfo& info = plan_.outputs[i];
    if (info.tag != et::Tag::Tensor || info.is_planned) {
      continue;
    }
    output_memory_[i] = AlignedMemory::allocate(info.nbytes);
    if (!output_memory_[i]) {
      return out_of_memory(plan_, info.nbytes);
    }
    const auto error = method_->set_output_data_ptr(
        output_memory_[i].data(), info.nbytes, i);
    if (error != et::Error::Ok) {
      return failed(concat("give memory to ", info.label).c_str(), error);
    }
  }
  return success();
}

Status LoadedMethod::execute() {
  const FailureReason reason;
  const auto error = method_->execute();
  return error == et::Error::Ok
      ? success()
      : Status(failed("execute", error, reason.text()));
}

Outcome<std::vector<OutputValue>> LoadedMethod::take_outputs() {
  std::vector<OutputValue> outputs;
  outputs.reserve(plan_.outputs.size());
  for (size_t i = 0; i < plan_.outputs.size(); ++i) {
    const et::EValue& value = method_->get_output(i);
    if (value.isTensor()) {
      auto tensor = take_tensor(i);
      if (!tensor.ok()) {
        return std::move(tensor.failure());
      }
      outputs.push_back(std::move(tensor.value()));
    } else if (value.isInt()) {
      outputs.emplace_back(value.toInt());
    } else if (value.isDouble()) {
      outputs.emplace_back(value.toDouble());
    } else if (value.isBool()) {
      outputs.emplace_back(value.toBool());
    } else if (value.isString()) {
      const auto text = value.toString();
      outputs.emplace_back(std::string(text.data(), text.size()));
    } else {
      outputs.emplace_back(None{});
    }
  }
  return outputs;
}

Outcome<OutputValue> LoadedMethod::take_tensor(size_t index) {
  const Tensor& tensor = method_->get_output(index).toTensor();
  const size_t nbytes = tensor.nbytes();
  const void* data = tensor.const_data_ptr();
  if (data == nullptr && nbytes > 0) {
    return failed(
        concat("return ", plan_.outputs[index].label).c_str(),
        et::Error::InvalidState);
  }
  OwnedTensor owned;
  owned.scalar_type = tensor.scalar_type();
  owned.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  owned.strides.assign(tensor.strides().begin(), tensor.strides().end());
  if (output_memory_[index] && output_memory_[index].data() == data) {
    owned.memory = std::move(output_memory_[index]);
  } else {
    owned.memory = AlignedMemory::allocate(nbytes);
    if (!owned.memory) {
      return out_of_memory(plan_, nbytes);
    }
    if (nbytes > 0) {
      std::memcpy(owned.memory.data(), data, nbytes);
    }
  }
  return OutputValue(std::move(owned));
}

} // namespace etshared::runtime
