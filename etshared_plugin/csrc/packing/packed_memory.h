#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/owned_descriptor.h"

namespace etshared::runtime {

/// Memory that XNNPACK's weight cache takes for its file, or such a file.
///
/// The cache keeps one object, with one lock, per path. Whoever is not to wait
/// for others names the same memory by a path of its own.
class PackedMemory {
 public:
  /// nullptr when the system has no such memory; errno says why.
  static std::unique_ptr<PackedMemory> create();

  /// A finished file, through a duplicate of its descriptor, which must hold a
  /// shared lock. nullptr when there is no descriptor left; errno says why.
  static std::unique_ptr<PackedMemory> open_again(int descriptor);

  /// Negative when the process has closed it.
  int descriptor() const {
    return descriptor_.is_ours() ? descriptor_.number() : -1;
  }

  /// Why paths must not be used now, nothing when they may: then they lead to
  /// this memory and to nobody else's file.
  std::string obstacle() const;

  /// A path of at most 160 characters that no other number gives.
  std::string path(uint64_t number) const;

  /// Makes the content final, and open to any number of readers. Fails while
  /// anything in this process can still write to it; errno says why.
  bool finish();

 private:
  explicit PackedMemory(int descriptor) : descriptor_(descriptor) {}

  OwnedDescriptor descriptor_;
};

} // namespace etshared::runtime
