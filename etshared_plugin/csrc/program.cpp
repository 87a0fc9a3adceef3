#include "program.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "generated/program_generated.h"
#include "input_checks.h"

namespace etshared::runtime {
namespace {

namespace fb = ::executorch_flatbuffer;

// ExecuTorch 1.5.1 schema/extended_header: magic and length at byte 8, then
// the program's size and the offset of the first segment, little-endian.
constexpr size_t kHeaderOffset = 8;
constexpr char kHeaderMagic[] = "eh00";
constexpr size_t kSegmentBaseOffset = 24;
constexpr size_t kMinFileSize = 64;

Failure context_failure(const std::string& message) {
  return Failure{
      FailureKind::kContextFormat,
      concat("the record does not fit the program: ", message)};
}

} // namespace

Outcome<std::shared_ptr<const SharedProgram>> SharedProgram::open(
    std::shared_ptr<const FileBytes> bytes) {
  if (bytes->size() < kMinFileSize ||
      !fb::ProgramBufferHasIdentifier(bytes->data())) {
    return Failure{
        FailureKind::kProgramFormat,
        concat(
            "not an ExecuTorch program: no identifier ",
            quoted(fb::ProgramIdentifier()), " at byte 4")};
  }
  auto loader = std::make_unique<CheckedDataLoader>(bytes);
  auto loaded = et::Program::load(
      loader.get(), et::Program::Verification::InternalConsistency);
  if (!loaded.ok()) {
    return Failure{
        FailureKind::kProgramFormat,
        concat(
            "damaged or truncated program: ExecuTorch rejects it with ",
            et::to_string(loaded.error())),
        {},
        loaded.error()};
  }
  std::shared_ptr<SharedProgram> program(new SharedProgram(
      std::move(bytes), std::move(loader), std::move(loaded.get())));
  ETSHARED_RETURN_IF_FAILED(program->read_methods());
  program->read_named_data();
  ETSHARED_RETURN_IF_FAILED(program->read_context());
  return std::shared_ptr<const SharedProgram>(std::move(program));
}

const fb::Program& SharedProgram::tables() const {
  return *fb::GetProgram(bytes_->data());
}

Status SharedProgram::read_methods() {
  if (tables().execution_plan() == nullptr) {
    return Failure{
        FailureKind::kProgramFormat, "damaged program: no methods"};
  }
  std::set<std::string> names;
  for (const fb::ExecutionPlan* plan : *tables().execution_plan()) {
    auto method = read_method_plan(*plan);
    if (!method.ok()) {
      return std::move(method.failure());
    }
    if (!names.insert(method.value().name).second) {
      return Failure{
          FailureKind::kProgramFormat,
          concat(
              "damaged program: two methods are called ",
              quoted(method.value().name))};
    }
    const auto& nbytes = method.value().arena_nbytes;
    arena_nbytes_.resize(std::max(arena_nbytes_.size(), nbytes.size()));
    for (size_t i = 0; i < nbytes.size(); ++i) {
      arena_nbytes_[i] = std::max(arena_nbytes_[i], nbytes[i]);
    }
    for (const DelegateInfo& delegate : method.value().delegates) {
      const auto* inlined = tables().backend_delegate_data();
      if (!delegate.is_in_segment &&
          (inlined == nullptr || delegate.payload_index >= inlined->size() ||
           inlined->Get(delegate.payload_index)->data() == nullptr)) {
        return Failure{
            FailureKind::kProgramFormat,
            concat(
                "damaged program: method ", quoted(method.value().name),
                " has a delegate without payload")};
      }
    }
    methods_.push_back(std::move(method.value()));
  }
  return success();
}

void SharedProgram::read_named_data() {
  const auto* entries = tables().named_data();
  const auto* segments = tables().segments();
  if (entries == nullptr || segments == nullptr) {
    return;
  }
  std::set<uint64_t> offsets;
  for (const fb::NamedData* entry : *entries) {
    uint64_t offset = 0;
    if (entry->segment_index() < segments->size() &&
        !__builtin_add_overflow(
            segment_base_offset(),
            segments->Get(entry->segment_index())->offset(), &offset) &&
        !offsets.insert(offset).second) {
      loader_->addresses().expect_several(offset);
    }
  }
}

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
          concat("there is no method ", quoted(entry_point.name)));
    }
    MethodPlan& method = methods_[position->second];
    if (entry_point.input_names.size() != method.inputs.size() ||
        entry_point.num_results != method.outputs.size()) {
      return context_failure(concat(
          "method ", quoted(method.name), " has ", method.inputs.size(),
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
  const MethodPlan& method = methods_[method_of(delegate)];
  if (delegate.index >= method.delegates.size() ||
      method.delegates[delegate.index].backend_id != delegate.backend_id) {
    return context_failure(concat(
        "method ", quoted(method.name), " has no delegate ", delegate.index,
        " for ", quoted(delegate.backend_id)));
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
        delegate.index, " of method ", quoted(method.name)));
  }
  return success();
}

uint64_t SharedProgram::segment_base_offset() const {
  if (std::memcmp(bytes_->data() + kHeaderOffset, kHeaderMagic, 4) != 0) {
    return 0;
  }
  uint64_t offset = 0;
  std::memcpy(&offset, bytes_->data() + kSegmentBaseOffset, sizeof(offset));
  return offset;
}

Status SharedProgram::check_payloads(size_t method) const {
  if (!context_) {
    return success();
  }
  const MethodPlan& plan = methods_[method];
  for (size_t i = 0; i < plan.delegates.size(); ++i) {
    const DelegateInfo& delegate = plan.delegates[i];
    bool is_intact = false;
    if (!delegate.is_in_segment) {
      const auto* data =
          tables().backend_delegate_data()->Get(delegate.payload_index)->data();
      is_intact = inline_payloads_.at(delegate.payload_index)
                      .matches(data->data(), data->size());
    } else if (
        tables().segments() != nullptr &&
        delegate.payload_index < tables().segments()->size()) {
      const fb::DataSegment& segment =
          *tables().segments()->Get(delegate.payload_index);
      uint64_t offset = 0;
      is_intact = !__builtin_add_overflow(
                      segment_base_offset(), segment.offset(), &offset) &&
          loader_
              ->load(
                  offset,
                  segment.size(),
                  et::DataLoader::SegmentInfo(
                      et::DataLoader::SegmentInfo::Type::Backend,
                      delegate.payload_index))
              .ok();
    }
    if (!is_intact) {
      return Failure{
          FailureKind::kProgramFormat,
          concat(
              "damaged program: the payload of delegate ", i, " (",
              delegate.backend_id, ") of method ", quoted(plan.name),
              " differs from its recorded digest"),
          plan.name};
    }
  }
  return success();
}

const uint8_t* SharedProgram::initial_data(const InitialRange& range) const {
  const auto* groups = tables().mutable_data_segments();
  const auto* segments = tables().segments();
  if (groups == nullptr || groups->size() == 0 || segments == nullptr ||
      groups->Get(0)->offsets() == nullptr ||
      range.data_index >= groups->Get(0)->offsets()->size() ||
      groups->Get(0)->segment_index() >= segments->size()) {
    return nullptr;
  }
  uint64_t start = segment_base_offset();
  uint64_t end = 0;
  if (__builtin_add_overflow(
          start, segments->Get(groups->Get(0)->segment_index())->offset(),
          &start) ||
      __builtin_add_overflow(
          start, groups->Get(0)->offsets()->Get(range.data_index), &start) ||
      __builtin_add_overflow(start, range.nbytes, &end) ||
      end > bytes_->size()) {
    return nullptr;
  }
  return bytes_->data() + start;
}

} // namespace etshared::runtime
