#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "generated/program_generated.h"
#include "program/method_plan.h"
#include "program/value_uses.h"

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
      : plan_(plan), method_(method), uses_(plan, method) {}

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
    uses_.note();
    return success();
  }

 private:
  Failure damaged(const std::string& what) const {
    return Failure{
        FailureKind::kProgramFormat,
        concat(
            "damaged program: entry point ", quoted(method_.name), ' ', what),
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
      uses_.move_to(move->move_to());
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
      uses_.give(args.Get(2));
    }
    for (const int32_t index : args) {
      uses_.use(index);
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
      if (is_written && !uses_.write(args.Get(next))) {
        return damaged("writes to a constant");
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
      uses_.use(index);
    }
    return success();
  }

  const fb::ExecutionPlan& plan_;
  MethodPlan& method_;
  ValueUses uses_;
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
