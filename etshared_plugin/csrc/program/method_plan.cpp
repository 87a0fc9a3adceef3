#include "program/method_plan.h"

#include "generated/program_generated.h"
#include "program/tensor_layout.h"

namespace etshared::runtime {
namespace {

namespace fb = ::executorch_flatbuffer;

Failure damaged(const MethodPlan& method, const std::string& what) {
  return Failure{
      FailureKind::kProgramFormat,
      concat("damaged program: entry point ", quoted(method.name), ' ', what),
      method.name};
}

/// Dimensions, element type and memory of a tensor that crosses the border.
Status read_tensor(
    const fb::Tensor& tensor,
    const MethodPlan& method,
    ValueInfo& info) {
  info.scalar_type = static_cast<ScalarType>(tensor.scalar_type());
  info.is_dynamic = tensor.shape_dynamism() != fb::TensorShapeDynamism::STATIC;
  info.is_planned =
      tensor.allocation_info() != nullptr || tensor.data_buffer_idx() != 0;
  if (tensor.sizes() == nullptr || tensor.dim_order() == nullptr ||
      tensor.sizes()->size() != tensor.dim_order()->size()) {
    return damaged(method, concat("has a malformed ", info.label));
  }
  info.sizes.assign(tensor.sizes()->begin(), tensor.sizes()->end());
  info.dim_order.assign(tensor.dim_order()->begin(), tensor.dim_order()->end());
  const auto nbytes = dense_nbytes(info.sizes, info.scalar_type);
  if (!nbytes) {
    return damaged(method, concat("has a malformed ", info.label));
  }
  info.nbytes = *nbytes;
  if (!is_dim_order(info.dim_order, info.sizes.size())) {
    return damaged(method, concat("has a malformed dim order in ", info.label));
  }
  info.max_sizes = info.sizes;
  info.min_sizes = info.is_dynamic
      ? std::vector<int32_t>(info.sizes.size(), 0)
      : info.sizes;
  return success();
}

Status read_value(
    const fb::EValue& value,
    const MethodPlan& method,
    ValueInfo& info) {
  switch (value.val_type()) {
    case fb::KernelTypes::Null:
      info.tag = et::Tag::None;
      return success();
    case fb::KernelTypes::Int:
      info.tag = et::Tag::Int;
      info.int_value = value.val_as_Int()->int_val();
      return success();
    case fb::KernelTypes::Double:
      info.tag = et::Tag::Double;
      info.double_value = value.val_as_Double()->double_val();
      return success();
    case fb::KernelTypes::Bool:
      info.tag = et::Tag::Bool;
      info.bool_value = value.val_as_Bool()->bool_val();
      return success();
    case fb::KernelTypes::String:
      info.tag = et::Tag::String;
      if (value.val_as_String()->string_val() == nullptr) {
        return damaged(method, concat("has a malformed ", info.label));
      }
      info.string_value = value.val_as_String()->string_val()->str();
      return success();
    case fb::KernelTypes::Tensor:
      info.tag = et::Tag::Tensor;
      return read_tensor(*value.val_as_Tensor(), method, info);
    default:
      return damaged(
          method, concat("has neither a tensor nor a number as ", info.label));
  }
}

Status read_border(
    const fb::ExecutionPlan& plan,
    const flatbuffers::Vector<int32_t>* indices,
    const char* word,
    const MethodPlan& method,
    std::vector<ValueInfo>& infos) {
  if (indices == nullptr) {
    return damaged(method, concat("has no list of ", word, "s"));
  }
  for (size_t i = 0; i < indices->size(); ++i) {
    ValueInfo info;
    info.label = concat(word, ' ', i);
    const int32_t index = indices->Get(i);
    if (index < 0 || static_cast<uint32_t>(index) >= plan.values()->size()) {
      return damaged(method, concat("has no value for ", info.label));
    }
    ETSHARED_RETURN_IF_FAILED(
        read_value(*plan.values()->Get(index), method, info));
    infos.push_back(std::move(info));
  }
  return success();
}

Status read_external(const fb::Tensor& tensor, MethodPlan& method) {
  const fb::ExtraTensorInfo* extra = tensor.extra_tensor_info();
  if (extra == nullptr ||
      extra->location() != fb::TensorDataLocation::EXTERNAL) {
    return success();
  }
  if (extra->fully_qualified_name() == nullptr) {
    return damaged(method, "has an external tensor without a name");
  }
  if (tensor.allocation_info() == nullptr) {
    method.external_constants.push_back(extra->fully_qualified_name()->str());
  } else {
    // Each load of a method would set it back for all.
    method.obstacle = Failure{
        FailureKind::kUnsupported,
        concat(
            "entry point ", quoted(method.name), " takes the initial value of ",
            quoted(extra->fully_qualified_name()->str()),
            " from a data file; export the program with etshared_plugin"),
        method.name};
  }
  return success();
}

Status read_values(const fb::ExecutionPlan& plan, MethodPlan& method) {
  if (plan.values() == nullptr) {
    return damaged(method, "has no values");
  }
  for (const fb::EValue* value : *plan.values()) {
    const bool has_content = value->val() != nullptr ||
        value->val_type() == fb::KernelTypes::Null;
    if (!has_content) {
      return damaged(method, "has a value without content");
    }
    const fb::Tensor* tensor = value->val_as_Tensor();
    if (tensor == nullptr) {
      continue;
    }
    ETSHARED_RETURN_IF_FAILED(read_external(*tensor, method));
    const fb::AllocationDetails* place = tensor->allocation_info();
    if (place == nullptr || tensor->data_buffer_idx() == 0) {
      continue;
    }
    ValueInfo info;
    info.label = "initialised tensor";
    ETSHARED_RETURN_IF_FAILED(read_tensor(*tensor, method, info));
    method.initial_ranges.push_back(InitialRange{
        place->memory_id(),
        uint64_t{place->memory_offset_high()} << 32 |
            place->memory_offset_low(),
        info.nbytes,
        tensor->data_buffer_idx()});
  }
  return success();
}

/// After the call it would be too late to find out.
void check_outputs_are_exchangeable(MethodPlan& method) {
  for (const ValueInfo& output : method.outputs) {
    if (output.tag == et::Tag::Tensor && !is_exchangeable(output.scalar_type)) {
      method.obstacle = Failure{
          FailureKind::kUnsupported,
          concat(
              "entry point ", quoted(method.name), ": ", output.label,
              " has scalar type ", static_cast<int>(output.scalar_type),
              ", which cannot be handed over"),
          method.name};
    }
  }
}

Status read_arenas(const fb::ExecutionPlan& plan, MethodPlan& method) {
  if (plan.non_const_buffer_sizes() == nullptr) {
    return damaged(method, "plans no memory");
  }
  // Element 0 is reserved: mem_id counts from 1.
  for (size_t i = 1; i < plan.non_const_buffer_sizes()->size(); ++i) {
    const int64_t nbytes = plan.non_const_buffer_sizes()->Get(i);
    if (nbytes < 0) {
      return damaged(
          method, concat("plans ", nbytes, " bytes of memory for mem_id ", i));
    }
    method.arena_nbytes.push_back(static_cast<uint64_t>(nbytes));
  }
  for (const InitialRange& range : method.initial_ranges) {
    uint64_t end = 0;
    if (range.mem_id == 0 || range.mem_id > method.arena_nbytes.size() ||
        __builtin_add_overflow(range.offset, range.nbytes, &end) ||
        end > method.arena_nbytes[range.mem_id - 1]) {
      return damaged(method, "initialises memory outside its plan");
    }
  }
  if (plan.non_const_buffer_device() != nullptr) {
    for (const fb::NonConstBufferDevice* place :
         *plan.non_const_buffer_device()) {
      if (place->device_type() != fb::DeviceType::CPU) {
        method.obstacle = Failure{
            FailureKind::kUnsupported,
            concat(
                "entry point ", quoted(method.name), " plans mem_id ",
                place->buffer_idx(), " on another device than the CPU"),
            method.name};
      }
    }
  }
  return success();
}

Status read_delegates(const fb::ExecutionPlan& plan, MethodPlan& method) {
  if (plan.delegates() == nullptr) {
    return damaged(method, "has no list of delegates");
  }
  for (const fb::BackendDelegate* delegate : *plan.delegates()) {
    if (delegate->id() == nullptr || delegate->processed() == nullptr) {
      return damaged(method, "has a delegate without backend or payload");
    }
    if (delegate->compile_specs() != nullptr) {
      for (const fb::CompileSpec* spec : *delegate->compile_specs()) {
        if (spec->key() == nullptr || spec->value() == nullptr) {
          return damaged(method, "has a compile spec without key or value");
        }
      }
    }
    method.delegates.push_back(DelegateInfo{
        delegate->id()->str(),
        delegate->processed()->location() == fb::DataLocation::SEGMENT,
        delegate->processed()->index()});
  }
  return success();
}

Status read_operators(const fb::ExecutionPlan& plan, MethodPlan& method) {
  if (plan.operators() == nullptr) {
    return success();
  }
  for (const fb::Operator* source : *plan.operators()) {
    if (source->name() == nullptr) {
      return damaged(method, "has an operator without a name");
    }
    std::string name = source->name()->str();
    if (source->overload() != nullptr && source->overload()->size() > 0) {
      name += '.';
      name += source->overload()->str();
    }
    method.operators.push_back(std::move(name));
  }
  return success();
}

} // namespace

Outcome<MethodPlan> read_method_plan(const fb::ExecutionPlan& plan) {
  MethodPlan method;
  if (plan.name() == nullptr) {
    return Failure{
        FailureKind::kProgramFormat,
        "damaged program: an entry point has no name"};
  }
  method.name = plan.name()->str();
  ETSHARED_RETURN_IF_FAILED(read_values(plan, method));
  ETSHARED_RETURN_IF_FAILED(
      read_border(plan, plan.inputs(), "input", method, method.inputs));
  ETSHARED_RETURN_IF_FAILED(
      read_border(plan, plan.outputs(), "output", method, method.outputs));
  check_outputs_are_exchangeable(method);
  ETSHARED_RETURN_IF_FAILED(read_arenas(plan, method));
  ETSHARED_RETURN_IF_FAILED(read_delegates(plan, method));
  ETSHARED_RETURN_IF_FAILED(read_operators(plan, method));
  ETSHARED_RETURN_IF_FAILED(check_instructions(plan, method));
  return method;
}

} // namespace etshared::runtime
