#include "base/owned_descriptor.h"

#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace etshared::runtime {
namespace {

// New descriptors get the lowest number that is free.
constexpr int kUnlikelyNumber = 512;

} // namespace

OwnedDescriptor::OwnedDescriptor(int number) : number_(number) {
  if (number_ < 0) {
    return;
  }
  const int unlikely = ::fcntl(number_, F_DUPFD_CLOEXEC, kUnlikelyNumber);
  if (unlikely >= 0) {
    ::close(number_);
    number_ = unlikely;
  }
  struct stat status = {};
  ::fstat(number_, &status);
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

OwnedDescriptor::OwnedDescriptor(OwnedDescriptor&& other) noexcept
    : number_(std::exchange(other.number_, -1)),
      device_(other.device_),
      inode_(other.inode_) {}

OwnedDescriptor& OwnedDescriptor::operator=(OwnedDescriptor&& other) noexcept {
  std::swap(number_, other.number_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  return *this;
}

OwnedDescriptor::~OwnedDescriptor() {
  if (is_ours()) {
    ::close(number_);
  }
}

bool OwnedDescriptor::is_same(int number) const {
  struct stat status = {};
  return number >= 0 && ::fstat(number, &status) == 0 &&
      status.st_dev == device_ && status.st_ino == inode_;
}

} // namespace etshared::runtime
