#include <algorithm>
#include <map>

#include "program/input_checks.h"
#include "program/program.h"

namespace etshared::runtime {
namespace {

Failure context_failure(const std::string& message) {
  return Failure{
      FailureKind::kContextFormat,
      concat("the record does not fit the program: ", message)};
}

} // namespace

Status SharedProgram::read_context() {
  const auto named_data = program_.get_named_data_map();
  if (!named_data.ok()) {
    return success();
  }
  auto data = named_data.get()->get_data(kContextKey);
  if (!data.ok()) {
    if (data.error() == et::Error::NotFound) {
      return success();
    }
    return Failure{
        FailureKind::kContextFormat,
        concat("cannot read the record: ", et::to_string(data.error()))};
  }
  // The loader serves segments from bytes_, which this object keeps alive.
  context_bytes_ = et::Span<const uint8_t>(
      static_cast<const uint8_t*>(data->data()), data->size());
  auto context =
      read_shared_context(context_bytes_.data(), context_bytes_.size());
  if (!context.ok()) {
    return std::move(context.failure());
  }
  context_ = std::move(context.value());
  return match_context();
}

Status SharedProgram::match_context() {
  std::map<std::string_view, size_t> positions;
  for (size_t i = 0; i < methods_.size(); ++i) {
    positions[methods_[i].name] = i;
  }
  if (context_->entry_points.size() != methods_.size()) {
    return context_failure(concat(
        "it describes ", context_->entry_points.size(), " entry points of ",
        methods_.size()));
  }
  for (const EntryPointRecord& entry_point : context_->entry_points) {
    const auto position = positions.find(entry_point.name);
    if (position == positions.end()) {
      return context_failure(
          concat("there is no entry point ", quoted(entry_point.name)));
    }
    MethodPlan& method = methods_[position->second];
    if (entry_point.input_names.size() != method.inputs.size() ||
        entry_point.num_results != method.outputs.size()) {
      return context_failure(concat(
          "entry point ", quoted(method.name), " has ", method.inputs.size(),
          " inputs and ", method.outputs.size(), " outputs, the record names ",
          entry_point.input_names.size(), " and ", entry_point.num_results));
    }
    for (size_t i = 0; i < method.inputs.size(); ++i) {
      method.inputs[i].label =
          concat("input ", quoted(entry_point.input_names[i]));
    }
    ETSHARED_RETURN_IF_FAILED(limit_input_sizes(entry_point, method));
    if (entry_point.is_generated) {
      generated_method_ = position->second;
      if (!method.inputs.empty()) {
        return context_failure(concat(
            "the generated entry point ", quoted(method.name), " has inputs"));
      }
    }
  }
  for (const BufferRecord& buffer : context_->buffers) {
    if (buffer.mem_id > arena_nbytes_.size() ||
        buffer.offset + buffer.nbytes > arena_nbytes_[buffer.mem_id - 1]) {
      return context_failure(concat(
          "buffer ", quoted(buffer.fqn), " lies outside mem_id ",
          buffer.mem_id));
    }
    if (!buffer.is_zero_initially && !generated_method_) {
      return context_failure(concat(
          "no entry point holds the initial value of buffer ",
          quoted(buffer.fqn)));
    }
  }
  size_t num_delegates = 0;
  for (const MethodPlan& method : methods_) {
    num_delegates += method.delegates.size();
  }
  if (context_->delegates.size() != num_delegates) {
    return context_failure(concat(
        "it describes ", context_->delegates.size(), " delegates of ",
        num_delegates));
  }
  for (const DelegateRecord& delegate : context_->delegates) {
    ETSHARED_RETURN_IF_FAILED(expect_payload(delegate));
  }
  return success();
}

size_t SharedProgram::method_of(const DelegateRecord& delegate) const {
  const std::string& name = context_->entry_points[delegate.entry_point].name;
  const auto method = std::find_if(
      methods_.begin(), methods_.end(), [&](const MethodPlan& one) {
        return one.name == name;
      });
  return static_cast<size_t>(method - methods_.begin());
}

Status SharedProgram::expect_payload(const DelegateRecord& delegate) {
  MethodPlan& method = methods_[method_of(delegate)];
  if (delegate.index >= method.delegates.size() ||
      method.delegates[delegate.index].backend_id != delegate.backend_id) {
    return context_failure(concat(
        "entry point ", quoted(method.name), " has no delegate ",
        delegate.index,
        " for ", quoted(delegate.backend_id)));
  }
  for (const auto& [key, nbytes] : delegate.external) {
    const auto found = data_files_->nbytes(key);
    if (found && *found != nbytes) {
      return Failure{
          FailureKind::kProgramFormat,
          concat(
              "a data file holds ", *found, " bytes for ",
              quoted(key), ", of which entry point ", quoted(method.name),
              " needs ", nbytes)};
    }
    method.external_constants.push_back(key);
  }
  const DelegateInfo& info = method.delegates[delegate.index];
  bool is_consistent = true;
  if (info.is_in_segment) {
    is_consistent = loader_->expect(
        info.payload_index, delegate.payload_digest, delegate.payload_nbytes);
  } else {
    const auto [position, is_new] = inline_payloads_.try_emplace(
        info.payload_index, delegate.payload_digest, delegate.payload_nbytes);
    is_consistent = is_new ||
        position->second.is_same(ExpectedPayload(
            delegate.payload_digest, delegate.payload_nbytes));
  }
  if (!is_consistent) {
    return context_failure(concat(
        "two delegates use one payload, but have different digests, among "
        "them delegate ",
        delegate.index, " of entry point ", quoted(method.name)));
  }
  return success();
}

} // namespace etshared::runtime
