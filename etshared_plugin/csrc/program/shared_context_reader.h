#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/failure.h"
#include "base/scalar_type.h"
#include "base/sha256.h"
#include "program/backend_options.h"

namespace etshared::runtime {

/// One piece of shared state.
struct BufferRecord {
  std::string fqn;
  ScalarType scalar_type;
  std::vector<int32_t> sizes;
  std::vector<uint8_t> dim_order;
  uint32_t mem_id;
  uint64_t offset;
  uint64_t nbytes;
  bool is_zero_initially;
};

struct DelegateRecord {
  std::string backend_id;
  uint32_t entry_point;
  uint32_t index;
  Digest payload_digest;
  uint64_t payload_nbytes;
  RecordedOptions options;
  /// Keys of its constants in the program's named data.
  std::set<std::string> keys;
  /// Bytes of those in data files, by key.
  std::map<std::string, uint64_t> external;
};

/// Sizes that one flat input may have, by dimension; none for what is no tensor.
struct InputSizesRecord {
  std::vector<int32_t> min_sizes;
  std::vector<int32_t> max_sizes;
  /// Dimensions with one symbol, other than 0, have one size in a call.
  std::vector<uint32_t> symbols;
};

struct EntryPointRecord {
  std::string name;
  bool is_generated;
  /// One per flat input: the argument's name, and where in it the leaf is.
  std::vector<std::string> input_names;
  std::vector<InputSizesRecord> input_sizes;
  uint64_t num_results;
};

/// What the runtime needs of the record; everything in it has been checked.
struct ContextRecord {
  std::vector<EntryPointRecord> entry_points;
  std::vector<BufferRecord> buffers;
  std::vector<DelegateRecord> delegates;
};

/// Key of the record in the program's named data.
inline constexpr const char* kContextKey = "etshared.context";

/// Version of the record that this runtime reads.
inline constexpr uint32_t kContextVersion = 1;

/// Decodes an untrusted record.
Outcome<ContextRecord> read_shared_context(const uint8_t* data, size_t size);

} // namespace etshared::runtime
