#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <executorch/runtime/core/named_data_map.h>
#include <executorch/runtime/core/span.h>

#include "base/failure.h"
#include "program/file_bytes.h"
#include "program/tensor_layout.h"

namespace etshared::runtime {

/// What files beside a program (`.ptd`) hold, by key.
///
/// ExecuTorch's own reader of such files trusts them; this one has verified all
/// that it hands out, except for the values. Immutable, and so thread-safe.
class DataFiles final : public et::NamedDataMap {
 public:
  /// Reads one more file, which messages call `name`; empty when it has a path.
  Status add(std::shared_ptr<const FileBytes> bytes, const std::string& name);

  bool is_empty() const {
    return entries_.empty();
  }
  bool contains(std::string_view key) const {
    return find(key) != nullptr;
  }
  /// Bytes of the data; absent if there are none.
  std::optional<uint64_t> nbytes(std::string_view key) const;

  et::Result<const et::TensorLayout> get_tensor_layout(
      std::string_view key) const override;
  et::Result<et::FreeableBuffer> get_data(std::string_view key) const override;
  et::Error load_data_into(std::string_view key, void* buffer, size_t size)
      const override;
  et::Result<uint32_t> get_num_keys() const override;
  et::Result<const char*> get_key(uint32_t index) const override;

 private:
  struct Entry {
    et::Span<const uint8_t> data;
    /// Absent for what is no tensor.
    std::optional<TensorLayout> layout;
  };

  const Entry* find(std::string_view key) const;

  std::vector<std::shared_ptr<const FileBytes>> files_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::vector<const char*> keys_;
};

} // namespace etshared::runtime
