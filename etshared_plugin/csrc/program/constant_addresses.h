#pragma once

#include <map>
#include <memory>
#include <vector>

#include "program/file_bytes.h"

namespace etshared::runtime {

/// Gives constants that are stored once an address for each of their keys.
///
/// XNNPACK's weight cache (1.5.1) knows a constant by its address only, while a
/// delegate is loaded: two keys at one address would become one. The content
/// stays mapped as long as the program, because some operators keep pointers to
/// constants that the cache has let go of (PReLU's slopes).
class ConstantAddresses {
 public:
  explicit ConstantAddresses(std::shared_ptr<const FileBytes> bytes)
      : bytes_(std::move(bytes)) {}

  /// Several keys stand for the bytes at `offset`.
  void expect_several(size_t offset) {
    again_[offset];
  }

  /// Makes the loads of this thread use such addresses. One at a time.
  class Scope {
   public:
    explicit Scope(ConstantAddresses& addresses);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

  /// Whether this thread is in a Scope of these.
  bool is_active() const;

  /// From here on, addresses may be those of earlier delegates.
  void start_delegate();

  /// The bytes at `offset`, at an address that no other call has returned since
  /// the delegate started, where several keys stand for them; nullptr when
  /// there is no memory for it.
  const uint8_t* address(size_t offset, size_t size);

 private:
  struct Again {
    std::vector<Mapping> mappings;
    size_t num_used = 0;
  };

  std::shared_ptr<const FileBytes> bytes_;
  std::map<size_t, Again> again_;
};

} // namespace etshared::runtime
