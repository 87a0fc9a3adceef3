#include "program/input_checks.h"

#include <charconv>
#include <cmath>
#include <map>

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

Failure refused(const MethodPlan& method, const std::string& problem) {
  return Failure{
      FailureKind::kInput,
      concat("entry point ", quoted(method.name), problem),
      method.name,
      et::Error::InvalidArgument};
}

Failure refused(
    const MethodPlan& method,
    const ValueInfo& expected,
    const std::string& found,
    const std::string& wanted) {
  return refused(
      method, concat(": ", expected.label, ' ', found, ", expected ", wanted));
}

std::string describe_size(int64_t size, size_t dim) {
  return concat("has size ", size, " in dimension ", dim);
}

std::string describe_range(int32_t min_size, int32_t max_size) {
  if (min_size == max_size) {
    return concat(max_size);
  }
  return min_size == 0 ? concat("at most ", max_size)
                       : concat(min_size, " to ", max_size);
}

Status check_sizes(
    const MethodPlan& method,
    const ValueInfo& expected,
    const std::vector<int64_t>& sizes) {
  const auto fail = [&] {
    const std::vector<int64_t> wanted(
        expected.sizes.begin(), expected.sizes.end());
    return refused(
        method,
        expected,
        concat("is of shape ", describe_sizes(sizes)),
        concat(expected.is_dynamic ? "at most " : "", describe_sizes(wanted)));
  };
  if (sizes.size() != expected.sizes.size()) {
    return fail();
  }
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] >= expected.min_sizes[dim] &&
        sizes[dim] <= expected.max_sizes[dim]) {
      continue;
    }
    if (!expected.is_dynamic) {
      return fail();
    }
    return refused(
        method,
        expected,
        describe_size(sizes[dim], dim),
        describe_range(expected.min_sizes[dim], expected.max_sizes[dim]));
  }
  return success();
}

Status check_input(
    const MethodPlan& method,
    const ValueInfo& expected,
    const InputValue& given) {
  if (expected.tag != et::Tag::Tensor) {
    if (is_recorded_value(expected, given)) {
      return success();
    }
    return refused(
        method,
        expected,
        concat("is ", describe(given)),
        concat(
            describe_recorded(expected),
            "; export fixed this value, export another entry point for "
            "another one"));
  }
  const auto* tensor = std::get_if<TensorView>(&given);
  if (tensor == nullptr) {
    return refused(
        method, expected, concat("is ", describe(given)), "a tensor");
  }
  if (tensor->scalar_type != expected.scalar_type) {
    return refused(
        method,
        expected,
        concat("is ", dtype_name(tensor->scalar_type)),
        std::string(dtype_name(expected.scalar_type)));
  }
  return check_sizes(method, expected, tensor->sizes);
}

} // namespace

Status limit_input_sizes(const EntryPointRecord& record, MethodPlan& method) {
  std::map<uint32_t, std::pair<size_t, size_t>> firsts;
  for (size_t i = 0; i < method.inputs.size(); ++i) {
    ValueInfo& input = method.inputs[i];
    const InputSizesRecord& sizes = record.input_sizes[i];
    bool is_possible = sizes.max_sizes.size() == input.sizes.size();
    for (size_t dim = 0; is_possible && dim < input.sizes.size(); ++dim) {
      is_possible = sizes.max_sizes[dim] <= input.max_sizes[dim] &&
          sizes.min_sizes[dim] >= input.min_sizes[dim];
    }
    if (!is_possible) {
      return Failure{
          FailureKind::kContextFormat,
          concat(
              "the record does not fit the program: entry point ",
              quoted(method.name), " cannot take ", input.label,
              " in the recorded sizes")};
    }
    input.min_sizes = sizes.min_sizes;
    input.max_sizes = sizes.max_sizes;
    for (size_t dim = 0; dim < sizes.symbols.size(); ++dim) {
      if (sizes.symbols[dim] == 0) {
        continue;
      }
      const auto [first, is_new] =
          firsts.try_emplace(sizes.symbols[dim], i, dim);
      if (!is_new) {
        const auto& [first_input, first_dim] = first->second;
        method.tied_sizes.push_back({i, dim, first_input, first_dim});
      }
    }
  }
  return success();
}

Status check_inputs(
    const MethodPlan& method,
    const std::vector<InputValue>& inputs) {
  if (inputs.size() != method.inputs.size()) {
    return refused(
        method,
        concat(
            " got ", inputs.size(), inputs.size() == 1 ? " input" : " inputs",
            ", expected ",
            method.inputs.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    ETSHARED_RETURN_IF_FAILED(
        check_input(method, method.inputs[i], inputs[i]));
  }
  for (const TiedSize& tied : method.tied_sizes) {
    const auto size_of = [&](size_t input, size_t dim) {
      return std::get_if<TensorView>(&inputs[input])->sizes[dim];
    };
    const int64_t size = size_of(tied.input, tied.dim);
    const int64_t first_size = size_of(tied.first_input, tied.first_dim);
    if (size != first_size) {
      return refused(
          method,
          method.inputs[tied.input],
          describe_size(size, tied.dim),
          concat(
              first_size, " as in dimension ", tied.first_dim, " of ",
              method.inputs[tied.first_input].label));
    }
  }
  return success();
}

} // namespace etshared::runtime
