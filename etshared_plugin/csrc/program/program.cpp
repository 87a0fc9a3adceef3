#include "program/program.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "generated/program_generated.h"

namespace etshared::runtime {
namespace {

namespace fb = ::executorch_flatbuffer;

// ExecuTorch 1.5.1 schema/extended_header: magic and length at byte 8, then
// the program's size and the offset of the first segment, little-endian.
constexpr size_t kHeaderOffset = 8;
constexpr char kHeaderMagic[] = "eh00";
constexpr size_t kSegmentBaseOffset = 24;
constexpr size_t kMinFileSize = 64;

} // namespace

Outcome<std::shared_ptr<const SharedProgram>> SharedProgram::open(
    std::shared_ptr<const FileBytes> bytes,
    std::shared_ptr<const DataFiles> data_files) {
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
      std::move(bytes),
      std::move(data_files),
      std::move(loader),
      std::move(loaded.get())));
  ETSHARED_RETURN_IF_FAILED(program->read_methods());
  ETSHARED_RETURN_IF_FAILED(program->read_named_data());
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
              "damaged program: two entry points are called ",
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
                "damaged program: entry point ", quoted(method.value().name),
                " has a delegate without payload")};
      }
    }
    methods_.push_back(std::move(method.value()));
  }
  return success();
}

Status SharedProgram::read_named_data() {
  const auto* entries = tables().named_data();
  const auto* segments = tables().segments();
  if (entries == nullptr || segments == nullptr) {
    return success();
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
    if (entry->key() != nullptr && data_files_->contains(entry->key()->str())) {
      return Failure{
          FailureKind::kProgramFormat,
          concat(
              "the program and a data file both hold ",
              quoted(entry->key()->str()))};
    }
  }
  return success();
}

std::optional<et::Span<const uint8_t>> SharedProgram::named_data(
    const char* key) const {
  const auto map = program_.get_named_data_map();
  if (!map.ok()) {
    return std::nullopt;
  }
  const auto data = map.get()->get_data(key);
  if (!data.ok()) {
    return std::nullopt;
  }
  // The loader serves segments from bytes_, which this object keeps alive.
  return et::Span<const uint8_t>(
      static_cast<const uint8_t*>(data->data()), data->size());
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
              delegate.backend_id, ") of entry point ", quoted(plan.name),
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
