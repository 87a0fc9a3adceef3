#pragma once

#include "failure.h"
#include "method_plan.h"
#include "tensor.h"

namespace etshared::runtime {

/// Compares one input with the plan, so that nothing can fail midway for it.
Status check_input(
    const MethodPlan& method,
    const ValueInfo& expected,
    const InputValue& given);

} // namespace etshared::runtime
