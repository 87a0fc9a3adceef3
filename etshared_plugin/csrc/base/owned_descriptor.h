#pragma once

#include <sys/types.h>

namespace etshared::runtime {

/// A descriptor of our own, or none, closed in the end.
///
/// Processes that turn into daemons close descriptors that are not theirs, and
/// the next file that they open gets the number. So nothing may be done with the
/// number unless `is_ours()`, and closing keeps to that too.
class OwnedDescriptor {
 public:
  OwnedDescriptor() = default;

  /// Takes a descriptor, under another number where that makes it less likely
  /// to be given away. Negative stands for none.
  explicit OwnedDescriptor(int number);

  OwnedDescriptor(OwnedDescriptor&& other) noexcept;
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept;
  ~OwnedDescriptor();

  /// Negative when there is none.
  int number() const {
    return number_;
  }

  /// Whether the number still stands for what was taken.
  bool is_ours() const {
    return is_same(number_);
  }

  /// Whether another descriptor is of the same file.
  bool is_same(int number) const;

 private:
  int number_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

} // namespace etshared::runtime
