#include "program/value_uses.h"

#include <algorithm>

namespace etshared::runtime {
namespace {

namespace fb = ::executorch_flatbuffer;

bool has_elements(const fb::Tensor& tensor) {
  return tensor.sizes() == nullptr ||
      std::find(tensor.sizes()->begin(), tensor.sizes()->end(), 0) ==
      tensor.sizes()->end();
}

} // namespace

void ValueUses::for_each_tensor(int32_t index, const auto& action) {
  const fb::EValue& value = *plan_.values()->Get(index);
  if (value.val_type() == fb::KernelTypes::Tensor) {
    action(index);
  } else if (const auto* list = value.val_as_TensorList()) {
    std::for_each(list->items()->begin(), list->items()->end(), action);
  } else if (const auto* optional_list = value.val_as_OptionalTensorList()) {
    for (const int32_t item : *optional_list->items()) {
      if (item >= 0 &&
          plan_.values()->Get(item)->val_type() == fb::KernelTypes::Tensor) {
        action(item);
      }
    }
  }
}

void ValueUses::use(int32_t index) {
  for_each_tensor(index, [&](int32_t tensor) { is_used_.insert(tensor); });
}

bool ValueUses::write(int32_t index) {
  bool is_constant = false;
  for_each_tensor(index, [&](int32_t tensor) {
    is_written_.insert(tensor);
    const fb::Tensor& target = *plan_.values()->Get(tensor)->val_as_Tensor();
    is_constant |=
        target.data_buffer_idx() > 0 && target.allocation_info() == nullptr;
  });
  return !is_constant;
}

void ValueUses::note() {
  note_unplanned_values();
  note_border();
}

bool ValueUses::is_border(int32_t index) const {
  const auto contains = [&](const flatbuffers::Vector<int32_t>* indices) {
    return std::find(indices->begin(), indices->end(), index) !=
        indices->end();
  };
  return contains(plan_.inputs()) || contains(plan_.outputs());
}

/// ExecuTorch would hand such a value's null pointer to a kernel.
void ValueUses::note_unplanned_values() {
  for (const int32_t index : is_used_) {
    const fb::Tensor& tensor = *plan_.values()->Get(index)->val_as_Tensor();
    const bool is_external = tensor.extra_tensor_info() != nullptr &&
        tensor.extra_tensor_info()->location() ==
            fb::TensorDataLocation::EXTERNAL;
    if (tensor.allocation_info() == nullptr &&
        tensor.data_buffer_idx() == 0 && !is_external &&
        !is_given_.contains(index) && !is_moved_to_.contains(index) &&
        !is_border(index) && has_elements(tensor)) {
      obstruct(concat(
          "uses tensor ", index, ", for which no memory is planned; export "
          "with MemoryPlanningPass(alloc_mutable_buffers=True)"));
    }
  }
}

void ValueUses::note_border() {
  for (uint32_t i = 0; i < plan_.inputs()->size(); ++i) {
    method_.inputs[i].is_written =
        is_written_.contains(plan_.inputs()->Get(i));
  }
  for (uint32_t i = 0; i < plan_.outputs()->size(); ++i) {
    // Its memory is that of the input or of the value it is a view of.
    const int32_t index = plan_.outputs()->Get(i);
    if (!method_.outputs[i].is_planned && is_moved_to_.contains(index)) {
      obstruct(concat(
          "moves a value to output ", i, ", for which no memory is planned; "
          "export with MemoryPlanningPass(alloc_graph_output=True)"));
    }
    method_.outputs[i].is_planned |= is_given_.contains(index) ||
        std::find(plan_.inputs()->begin(), plan_.inputs()->end(), index) !=
            plan_.inputs()->end();
  }
}

void ValueUses::obstruct(const std::string& what) {
  if (!method_.obstacle) {
    method_.obstacle = Failure{
        FailureKind::kUnsupported,
        concat("entry point ", quoted(method_.name), ' ', what),
        method_.name};
  }
}

} // namespace etshared::runtime
