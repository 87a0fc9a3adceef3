#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <executorch/runtime/core/span.h>
#include <executorch/runtime/executor/program.h>

#include "base/failure.h"
#include "program/checked_data_loader.h"
#include "program/data_files.h"
#include "program/file_bytes.h"
#include "program/method_plan.h"
#include "program/shared_context_reader.h"

namespace etshared::runtime {

/// One `.pte` in memory, verified, with its record of what entry points share, and
/// the files with data beside it.
///
/// Immutable once opened, so that any number of sessions and threads may use
/// it. Sessions keep it alive.
class SharedProgram {
 public:
  static Outcome<std::shared_ptr<const SharedProgram>> open(
      std::shared_ptr<const FileBytes> bytes,
      std::shared_ptr<const DataFiles> data_files);

  const et::Program& program() const {
    return program_;
  }
  const std::vector<MethodPlan>& methods() const {
    return methods_;
  }

  /// Bytes that a session needs for mem_id 1, 2, …: the most of any method.
  const std::vector<uint64_t>& arena_nbytes() const {
    return arena_nbytes_;
  }

  /// What the program keeps outside of itself.
  const DataFiles& data_files() const {
    return *data_files_;
  }

  /// Absent when the file carries no record.
  const std::optional<ContextRecord>& context() const {
    return context_;
  }
  et::Span<const uint8_t> context_bytes() const {
    return context_bytes_;
  }

  /// What the program holds under `key`, as it lies in memory; absent when it
  /// holds nothing there that can be read.
  std::optional<et::Span<const uint8_t>> named_data(const char* key) const;

  /// The method that has the delegate.
  size_t method_of(const DelegateRecord& delegate) const;

  /// The method that writes the initial values of all state.
  std::optional<size_t> generated_method() const {
    return generated_method_;
  }

  /// Where loads with XNNPACK's weight cache find constants.
  ConstantAddresses& constant_addresses() const {
    return loader_->addresses();
  }

  /// Fails when a delegate's payload is not what the record says.
  Status check_payloads(size_t method) const;

  /// Where the file holds the initial value of a stock program's state;
  /// nullptr when it does not.
  const uint8_t* initial_data(const InitialRange& range) const;

 private:
  SharedProgram(
      std::shared_ptr<const FileBytes> bytes,
      std::shared_ptr<const DataFiles> data_files,
      std::unique_ptr<CheckedDataLoader> loader,
      et::Program program)
      : bytes_(std::move(bytes)),
        data_files_(std::move(data_files)),
        loader_(std::move(loader)),
        program_(std::move(program)) {}

  const executorch_flatbuffer::Program& tables() const;
  uint64_t segment_base_offset() const;
  Status read_methods();
  Status read_named_data();
  Status read_context();
  Status match_context();
  Status expect_payload(const DelegateRecord& delegate);

  std::shared_ptr<const FileBytes> bytes_;
  std::shared_ptr<const DataFiles> data_files_;
  std::unique_ptr<CheckedDataLoader> loader_;
  et::Program program_;
  std::vector<MethodPlan> methods_;
  std::vector<uint64_t> arena_nbytes_;
  std::optional<ContextRecord> context_;
  et::Span<const uint8_t> context_bytes_;
  std::optional<size_t> generated_method_;
  /// Payloads that stand in the program's tables, by their index there.
  std::map<uint32_t, ExpectedPayload> inline_payloads_;
};

} // namespace etshared::runtime
