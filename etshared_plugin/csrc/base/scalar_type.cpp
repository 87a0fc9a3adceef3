#include "base/scalar_type.h"

namespace etshared::runtime {

std::string_view dtype_name(ScalarType scalar_type) {
  switch (scalar_type) {
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Half:
      return "float16";
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::Bool:
      return "bool";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::UInt16:
      return "uint16";
    case ScalarType::UInt32:
      return "uint32";
    case ScalarType::UInt64:
      return "uint64";
    default:
      return "?";
  }
}

bool is_exchangeable(ScalarType scalar_type) {
  return dtype_name(scalar_type) != "?";
}

} // namespace etshared::runtime
