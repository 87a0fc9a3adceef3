#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "generated/program_generated.h"
#include "method_plan.h"

namespace etshared::runtime {
namespace {

namespace fb = ::executorch_flatbuffer;

constexpr std::string_view kView = "executorch_prim::et_view.default";

/// Kernels that put a new number into their last argument, whatever it was.
bool computes_number(std::string_view name) {
  return name == "aten::sym_size.int" || name == "aten::sym_numel" ||
      name == "aten::_local_scalar_dense" ||
      (name.starts_with("executorch_prim::") && name != kView &&
       name != "executorch_prim::et_copy_index.tensor");
}

bool is_number(fb::KernelTypes kind) {
  return kind == fb::KernelTypes::Int || kind == fb::KernelTypes::Double ||
      kind == fb::KernelTypes::Bool;
}

const std::map<std::string_view, std::string_view>& signatures() {
  static const std::map<std::string_view, std::string_view> table = {
#include "generated/kernel_signatures.inc"
  };
  return table;
}

/// Walks the instructions of one method.
class InstructionChecker {
 public:
  InstructionChecker(const fb::ExecutionPlan& plan, MethodPlan& method)
      : plan_(plan), method_(method) {}

  Status check() {
    if (plan_.chains() == nullptr || plan_.chains()->size() == 0) {
      return damaged("has no instructions");
    }
    for (const fb::Chain* chain : *plan_.chains()) {
      if (chain->instructions() == nullptr) {
        return damaged("has a chain without instructions");
      }
      for (const fb::Instruction* instruction : *chain->instructions()) {
        ETSHARED_RETURN_IF_FAILED(check_shape(*instruction));
      }
    }
    ETSHARED_RETURN_IF_FAILED(check_lists());
    for (const fb::Chain* chain : *plan_.chains()) {
      for (const fb::Instruction* instruction : *chain->instructions()) {
        if (const auto* call = instruction->instr_args_as_KernelCall()) {
          ETSHARED_RETURN_IF_FAILED(check_kernel_call(*call));
        } else if (
            const auto* call = instruction->instr_args_as_DelegateCall()) {
          ETSHARED_RETURN_IF_FAILED(check_delegate_call(*call));
        }
      }
    }
    note_unplanned_values();
    note_border();
    return success();
  }

 private:
  Failure damaged(const std::string& what) const {
    return Failure{
        FailureKind::kProgramFormat,
        concat("damaged program: method ", quoted(method_.name), ' ', what),
        method_.name};
  }

  bool exists(int64_t index) const {
    return index >= 0 && index < static_cast<int64_t>(plan_.values()->size());
  }

  bool exist(const flatbuffers::Vector<int32_t>* indices) const {
    return indices != nullptr &&
        std::all_of(indices->begin(), indices->end(), [&](int32_t index) {
             return exists(index);
           });
  }

  fb::KernelTypes kind(int32_t index) const {
    return plan_.values()->Get(index)->val_type();
  }

  /// Items are parsed in order, so a list may only name what comes before it.
  template <typename Items>
  bool has_earlier_tensors(const Items* items, int32_t list, bool optional) {
    return items != nullptr &&
        std::all_of(items->begin(), items->end(), [&](int64_t item) {
             return (optional && item == -1) ||
                 (exists(item) && item < list &&
                  (kind(item) == fb::KernelTypes::Tensor ||
                   (optional && kind(item) == fb::KernelTypes::Null)));
           });
  }

  Status check_lists() {
    for (uint32_t i = 0; i < plan_.values()->size(); ++i) {
      const fb::EValue& value = *plan_.values()->Get(i);
      bool is_sound = true;
      if (const auto* list = value.val_as_IntList()) {
        is_sound = list->items() != nullptr &&
            std::all_of(
                list->items()->begin(), list->items()->end(), [&](int64_t item) {
                  return exists(item) &&
                      (kind(item) == fb::KernelTypes::Int ||
                       (is_number(kind(item)) && is_computed_.contains(item)));
                });
      } else if (const auto* list = value.val_as_TensorList()) {
        is_sound = has_earlier_tensors(list->items(), i, /*optional=*/false);
      } else if (const auto* list = value.val_as_OptionalTensorList()) {
        is_sound = has_earlier_tensors(list->items(), i, /*optional=*/true);
      } else if (const auto* list = value.val_as_DoubleList()) {
        is_sound = list->items() != nullptr;
      } else if (const auto* list = value.val_as_BoolList()) {
        is_sound = list->items() != nullptr;
      } else if (const auto* string = value.val_as_String()) {
        is_sound = string->string_val() != nullptr;
      }
      if (!is_sound) {
        return damaged(concat("has a malformed list as value ", i));
      }
    }
    return success();
  }

  /// Indices are in range, and values keep their kind when they are replaced.
  Status check_shape(const fb::Instruction& instruction) {
    bool is_sound = false;
    if (instruction.instr_args() == nullptr) {
      return damaged("has an instruction without content");
    }
    if (const auto* call = instruction.instr_args_as_KernelCall()) {
      is_sound = call->op_index() >= 0 &&
          static_cast<size_t>(call->op_index()) < method_.operators.size() &&
          exist(call->args());
      if (is_sound && call->args()->size() > 0 &&
          computes_number(method_.operators[call->op_index()])) {
        const int32_t result = call->args()->Get(call->args()->size() - 1);
        is_sound = is_number(kind(result));
        is_computed_.insert(result);
      }
    } else if (const auto* call = instruction.instr_args_as_DelegateCall()) {
      is_sound = call->delegate_index() >= 0 &&
          static_cast<size_t>(call->delegate_index()) <
              method_.delegates.size() &&
          exist(call->args());
    } else if (const auto* jump = instruction.instr_args_as_JumpFalseCall()) {
      is_sound = exists(jump->cond_value_index()) &&
          jump->destination_instruction() >= 0;
    } else if (const auto* move = instruction.instr_args_as_MoveCall()) {
      is_sound = exists(move->move_from()) && exists(move->move_to()) &&
          (kind(move->move_from()) == kind(move->move_to()) ||
           (is_number(kind(move->move_from())) &&
            is_number(kind(move->move_to()))));
      is_moved_to_.insert(move->move_to());
      is_computed_.insert(move->move_to());
    } else if (const auto* free = instruction.instr_args_as_FreeCall()) {
      is_sound = exists(free->value_index());
    }
    return is_sound ? success() : Status(damaged("has a malformed instruction"));
  }

  Status check_kernel_call(const fb::KernelCall& call) {
    const std::string& name = method_.operators[call.op_index()];
    const auto& args = *call.args();
    if (name == kView && args.size() == 3) {
      is_given_.insert(args.Get(2));
    }
    for (const int32_t index : args) {
      use(index);
    }
    const auto position = signatures().find(name);
    if (position == signatures().end()) {
      return success();
    }
    size_t next = 0;
    bool is_optional = false;
    bool is_written = false;
    for (const char code : position->second) {
      if (code == '?') {
        is_optional = true;
        continue;
      }
      if (code == '!') {
        is_written = true;
        continue;
      }
      if (next == args.size() || !fits(args.Get(next), code, is_optional)) {
        return damaged(concat(
            "calls ", quoted(name), " with an unfit argument ", next));
      }
      if (is_written) {
        ETSHARED_RETURN_IF_FAILED(write(args.Get(next)));
      }
      ++next;
      is_optional = is_written = false;
    }
    return success();
  }

  bool fits(int32_t index, char code, bool is_optional) const {
    const fb::KernelTypes found = kind(index);
    if (found == fb::KernelTypes::Null) {
      return is_optional;
    }
    if (is_number(found) && is_computed_.contains(index)) {
      // The exporter cannot always tell which kind of number it will be.
      return code == 'N' || code == 'I' || code == 'B' || code == 'F';
    }
    switch (code) {
      case 'T':
        return found == fb::KernelTypes::Tensor;
      case 'N':
        return is_number(found);
      case 'I':
        return found == fb::KernelTypes::Int;
      case 'B':
        return found == fb::KernelTypes::Bool;
      case 'F':
        return found == fb::KernelTypes::Double;
      case 'Z':
        return found == fb::KernelTypes::String;
      case 'i':
        return found == fb::KernelTypes::IntList;
      case 'b':
        return found == fb::KernelTypes::BoolList;
      case 'f':
        return found == fb::KernelTypes::DoubleList;
      case 't':
        return found == fb::KernelTypes::TensorList;
      case 'o':
        return found == fb::KernelTypes::OptionalTensorList;
      default:
        return false;
    }
  }

  Status check_delegate_call(const fb::DelegateCall& call) {
    const DelegateInfo& delegate = method_.delegates[call.delegate_index()];
    for (const int32_t index : *call.args()) {
      if (delegate.backend_id == "XnnpackBackend" &&
          kind(index) != fb::KernelTypes::Tensor) {
        return damaged("gives XNNPACK something other than a tensor");
      }
      use(index);
    }
    return success();
  }

  void for_each_tensor(int32_t index, const auto& action) {
    const fb::EValue& value = *plan_.values()->Get(index);
    if (value.val_type() == fb::KernelTypes::Tensor) {
      action(index);
    } else if (const auto* list = value.val_as_TensorList()) {
      std::for_each(list->items()->begin(), list->items()->end(), action);
    }
  }

  void use(int32_t index) {
    for_each_tensor(index, [&](int32_t tensor) { is_used_.insert(tensor); });
  }

  Status write(int32_t index) {
    bool is_constant = false;
    for_each_tensor(index, [&](int32_t tensor) {
      is_written_.insert(tensor);
      const fb::Tensor& target = *plan_.values()->Get(tensor)->val_as_Tensor();
      is_constant |=
          target.data_buffer_idx() > 0 && target.allocation_info() == nullptr;
    });
    return is_constant ? Status(damaged("writes to a constant")) : success();
  }

  static bool has_elements(const fb::Tensor& tensor) {
    return tensor.sizes() == nullptr ||
        std::find(tensor.sizes()->begin(), tensor.sizes()->end(), 0) ==
        tensor.sizes()->end();
  }

  bool is_border(int32_t index) const {
    const auto contains = [&](const flatbuffers::Vector<int32_t>* indices) {
      return std::find(indices->begin(), indices->end(), index) !=
          indices->end();
    };
    return contains(plan_.inputs()) || contains(plan_.outputs());
  }

  /// ExecuTorch would hand such a value's null pointer to a kernel.
  void note_unplanned_values() {
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

  void obstruct(const std::string& what) {
    if (!method_.obstacle) {
      method_.obstacle = Failure{
          FailureKind::kUnsupported,
          concat("method ", quoted(method_.name), ' ', what),
          method_.name};
    }
  }

  void note_border() {
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

  const fb::ExecutionPlan& plan_;
  MethodPlan& method_;
  std::set<int32_t> is_used_;
  std::set<int32_t> is_written_;
  /// Views, which get the memory of what they are a view of.
  std::set<int32_t> is_given_;
  std::set<int32_t> is_moved_to_;
  /// Values that instructions replace by other numbers.
  std::set<int32_t> is_computed_;
};

} // namespace

Status check_instructions(
    const fb::ExecutionPlan& plan,
    MethodPlan& method) {
  return InstructionChecker(plan, method).check();
}

} // namespace etshared::runtime
