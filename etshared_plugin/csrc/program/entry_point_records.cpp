#include <algorithm>
#include <set>

#include <executorch/runtime/core/exec_aten/util/tensor_dimension_limit.h>

#include "program/shared_context_parts.h"

namespace etshared::runtime {
namespace {

uint64_t append_leaves(
    const Structure* structure,
    const std::string& name,
    std::vector<std::string>* names) {
  if (structure == nullptr || structure->kind() == StructureKind::LEAF) {
    if (names != nullptr) {
      names->push_back(name);
    }
    return 1;
  }
  uint64_t leaves = 0;
  const bool is_sequence = structure->kind() == StructureKind::TUPLE ||
      structure->kind() == StructureKind::LIST;
  for (size_t i = 0; i < count(structure->children()); ++i) {
    std::string child = name;
    if (names != nullptr) {
      const bool has_key = !is_sequence && i < count(structure->keys());
      const std::string key =
          has_key ? text(structure->keys()->Get(i)) : concat(i);
      child = !has_key ? concat(name, '[', key, ']')
          : structure->kind() == StructureKind::DICT
          ? concat(name, "['", key, "']")
          : concat(name, '.', key);
    }
    leaves += append_leaves(structure->children()->Get(i), child, names);
  }
  return leaves;
}

bool is_range(const InputSizesRecord& sizes, size_t dim) {
  return sizes.min_sizes[dim] >= 0 &&
      sizes.min_sizes[dim] <= sizes.max_sizes[dim];
}

Status read_input_sizes(const EntryPoint& source, EntryPointRecord& record) {
  if (count(source.inputs()) != record.input_names.size()) {
    return bad(concat(
        "entry point ", quoted(record.name), " has sizes of ",
        count(source.inputs()), " inputs, expected ",
        record.input_names.size()));
  }
  for (size_t i = 0; i < record.input_names.size(); ++i) {
    const InputSizes& input = *source.inputs()->Get(i);
    InputSizesRecord sizes;
    if (input.min_sizes() != nullptr) {
      sizes.min_sizes.assign(
          input.min_sizes()->begin(), input.min_sizes()->end());
    }
    if (input.max_sizes() != nullptr) {
      sizes.max_sizes.assign(
          input.max_sizes()->begin(), input.max_sizes()->end());
    }
    if (input.symbols() != nullptr) {
      sizes.symbols.assign(input.symbols()->begin(), input.symbols()->end());
    }
    const size_t num_dims = sizes.max_sizes.size();
    bool is_sound = num_dims <= et::kTensorDimensionLimit &&
        sizes.min_sizes.size() == num_dims && sizes.symbols.size() == num_dims;
    for (size_t dim = 0; is_sound && dim < num_dims; ++dim) {
      is_sound = is_range(sizes, dim);
    }
    if (!is_sound) {
      return bad(concat(
          "entry point ", quoted(record.name), ": the sizes of input ",
          quoted(record.input_names[i]), " are malformed"));
    }
    record.input_sizes.push_back(std::move(sizes));
  }
  return success();
}

} // namespace

Status read_entry_points(const SharedContext& context, ContextRecord& record) {
  std::set<std::string> names;
  for (size_t i = 0; i < count(context.entry_points()); ++i) {
    const EntryPoint& source = *context.entry_points()->Get(i);
    EntryPointRecord entry_point;
    entry_point.name = text(source.name());
    entry_point.is_generated = source.generated();
    if (entry_point.name.empty() || !names.insert(entry_point.name).second) {
      return bad(concat(
          "entry point ", i, " has the empty or repeated name ",
          quoted(entry_point.name)));
    }
    for (size_t j = 0; j < count(source.arguments()); ++j) {
      const Argument& argument = *source.arguments()->Get(j);
      append_leaves(
          argument.structure(), text(argument.name()), &entry_point.input_names);
    }
    entry_point.num_results = append_leaves(source.result(), "", nullptr);
    ETSHARED_RETURN_IF_FAILED(read_input_sizes(source, entry_point));
    record.entry_points.push_back(std::move(entry_point));
  }
  const auto num_generated = std::count_if(
      record.entry_points.begin(),
      record.entry_points.end(),
      [](const EntryPointRecord& one) { return one.is_generated; });
  if (num_generated > 1) {
    return bad(concat(num_generated, " entry points are generated, not one"));
  }
  return success();
}

} // namespace etshared::runtime
