#pragma once

#include <string_view>

#include <executorch/runtime/core/exec_aten/exec_aten.h>

namespace etshared::runtime {

using ScalarType = ::executorch::aten::ScalarType;

/// torch's name of the type, for example "float32"; "?" if there is none.
std::string_view dtype_name(ScalarType scalar_type);

/// Whether tensors of this type can be handed over to and from callers.
bool is_exchangeable(ScalarType scalar_type);

} // namespace etshared::runtime
