#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "failure.h"

namespace etshared::runtime {

/// The bytes of a program: a private mapping of a file, or an owned copy.
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

 private:
  FileBytes(uint8_t* data, size_t size) : data_(data), size_(size) {}

  uint8_t* data_;
  size_t size_;
};

} // namespace etshared::runtime
