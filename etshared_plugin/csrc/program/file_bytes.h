#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/failure.h"
#include "base/owned_descriptor.h"

namespace etshared::runtime {

/// Whether `size` bytes at `offset` lie in the first `total`.
inline bool is_inside(uint64_t offset, uint64_t size, uint64_t total) {
  return offset <= total && size <= total - offset;
}

/// Some bytes of a file in memory, or nothing.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* start, size_t nbytes, size_t skipped)
      : start_(start), nbytes_(nbytes), skipped_(skipped) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) = delete;
  ~Mapping();

  explicit operator bool() const {
    return start_ != nullptr;
  }
  const uint8_t* data() const {
    return static_cast<uint8_t*>(start_) + skipped_;
  }

 private:
  void* start_ = nullptr;
  size_t nbytes_ = 0;
  /// Mappings start at pages.
  size_t skipped_ = 0;
};

/// The bytes of a program: a mapping of a file, or an owned copy.
class FileBytes {
 public:
  /// Maps `path` without locking its pages in memory.
  static Outcome<std::shared_ptr<const FileBytes>> map(const std::string& path);

  /// Copies `size` bytes into page-aligned memory, as a mapping would be.
  static Outcome<std::shared_ptr<const FileBytes>> copy(
      const void* data,
      size_t size);

  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  const uint8_t* data() const {
    return data_;
  }
  size_t size() const {
    return size_;
  }

  /// The same bytes at another address, where possible without a copy; nothing
  /// when that cannot be had. The range must lie inside.
  Mapping map_again(size_t offset, size_t size) const;

 private:
  FileBytes(OwnedDescriptor descriptor, uint8_t* data, size_t size)
      : descriptor_(std::move(descriptor)), data_(data), size_(size) {}

  /// What is mapped, if it has a descriptor.
  OwnedDescriptor descriptor_;
  uint8_t* data_;
  size_t size_;
};

} // namespace etshared::runtime
