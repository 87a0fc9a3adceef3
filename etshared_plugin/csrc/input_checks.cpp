#include "input_checks.h"

#include <charconv>
#include <cmath>

namespace etshared::runtime {
namespace {

/// As short as reads back the same.
std::string describe(double value) {
  char text[32];
  const auto result = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, result.ptr);
}

/// What the caller gave, for messages.
std::string describe(const InputValue& value) {
  struct Describer {
    std::string operator()(Omitted) const {
      return "missing";
    }
    std::string operator()(None) const {
      return "None";
    }
    std::string operator()(bool one) const {
      return one ? "True" : "False";
    }
    std::string operator()(int64_t one) const {
      return concat("the int ", one);
    }
    std::string operator()(double one) const {
      return concat("the float ", describe(one));
    }
    std::string operator()(const std::string& one) const {
      return concat("the str ", quoted(one));
    }
    std::string operator()(const TensorView&) const {
      return "a tensor";
    }
  };
  return std::visit(Describer(), value);
}

std::string describe_recorded(const ValueInfo& expected) {
  switch (expected.tag) {
    case et::Tag::Tensor:
      return "a tensor";
    case et::Tag::Int:
      return concat("the int ", expected.int_value);
    case et::Tag::Double:
      return concat("the float ", describe(expected.double_value));
    case et::Tag::Bool:
      return expected.bool_value ? "True" : "False";
    case et::Tag::String:
      return concat("the str ", quoted(expected.string_value));
    default:
      return "None";
  }
}

bool is_recorded_value(const ValueInfo& expected, const InputValue& given) {
  if (std::holds_alternative<Omitted>(given)) {
    return true;
  }
  switch (expected.tag) {
    case et::Tag::None:
      return std::holds_alternative<None>(given);
    case et::Tag::Int: {
      const auto* value = std::get_if<int64_t>(&given);
      return value != nullptr && *value == expected.int_value;
    }
    case et::Tag::Double: {
      // A Python caller may write 2 for 2.0.
      const auto* whole = std::get_if<int64_t>(&given);
      const auto* value = std::get_if<double>(&given);
      if (whole != nullptr) {
        return static_cast<double>(*whole) == expected.double_value;
      }
      return value != nullptr &&
          (*value == expected.double_value ||
           (std::isnan(*value) && std::isnan(expected.double_value)));
    }
    case et::Tag::Bool: {
      const auto* value = std::get_if<bool>(&given);
      return value != nullptr && *value == expected.bool_value;
    }
    case et::Tag::String: {
      const auto* value = std::get_if<std::string>(&given);
      return value != nullptr && *value == expected.string_value;
    }
    default:
      return false;
  }
}

std::string describe_expected_sizes(const ValueInfo& expected) {
  std::vector<int64_t> sizes(expected.sizes.begin(), expected.sizes.end());
  return concat(
      expected.is_dynamic ? "at most " : "", describe_sizes(sizes));
}

bool has_fitting_sizes(const ValueInfo& expected, const TensorView& given) {
  if (given.sizes.size() != expected.sizes.size()) {
    return false;
  }
  for (size_t i = 0; i < given.sizes.size(); ++i) {
    if (expected.is_dynamic ? given.sizes[i] > expected.sizes[i]
                            : given.sizes[i] != expected.sizes[i]) {
      return false;
    }
  }
  return true;
}

} // namespace

Status check_input(
    const MethodPlan& method,
    const ValueInfo& expected,
    const InputValue& given) {
  const auto fail = [&](const std::string& found, const std::string& wanted) {
    return Failure{
        FailureKind::kInput,
        concat(
            "method ", quoted(method.name), ": ", expected.label, " is ", found,
            ", expected ", wanted),
        method.name,
        et::Error::InvalidArgument};
  };
  if (expected.tag != et::Tag::Tensor) {
    if (is_recorded_value(expected, given)) {
      return success();
    }
    return fail(
        describe(given),
        concat(
            describe_recorded(expected),
            "; export fixed this value, export another entry point for "
            "another one"));
  }
  const auto* tensor = std::get_if<TensorView>(&given);
  if (tensor == nullptr) {
    return fail(describe(given), "a tensor");
  }
  if (tensor->scalar_type != expected.scalar_type) {
    return fail(
        std::string(dtype_name(tensor->scalar_type)),
        std::string(dtype_name(expected.scalar_type)));
  }
  if (!has_fitting_sizes(expected, *tensor)) {
    return fail(
        concat("of shape ", describe_sizes(tensor->sizes)),
        describe_expected_sizes(expected));
  }
  return success();
}

} // namespace etshared::runtime
