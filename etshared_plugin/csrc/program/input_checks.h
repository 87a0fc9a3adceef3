#pragma once

#include "base/failure.h"
#include "program/method_plan.h"
#include "program/shared_context_reader.h"
#include "program/tensor.h"

namespace etshared::runtime {

/// Narrows the sizes that the plan allows to those that export allowed. Fails
/// when the record contradicts the plan; `method` has the record's inputs.
Status limit_input_sizes(const EntryPointRecord& record, MethodPlan& method);

/// Compares inputs with the plan, so that nothing can fail midway for them.
Status check_inputs(
    const MethodPlan& method,
    const std::vector<InputValue>& inputs);

} // namespace etshared::runtime
