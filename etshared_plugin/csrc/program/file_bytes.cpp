#include "program/file_bytes.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace etshared::runtime {
namespace {

Failure cannot_read(const std::string& problem) {
  return Failure{
      FailureKind::kProgramFormat, concat("cannot be read: ", problem)};
}

Failure empty() {
  return Failure{FailureKind::kProgramFormat, "the file is empty"};
}

} // namespace

Outcome<std::shared_ptr<const FileBytes>> FileBytes::map(
    const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    return cannot_read("a path has no NUL character");
  }
  // Opening a pipe would wait for its writer.
  OwnedDescriptor descriptor(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor.number() < 0) {
    return cannot_read(std::strerror(errno));
  }
  struct stat status = {};
  if (::fstat(descriptor.number(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return cannot_read(
        S_ISDIR(status.st_mode) ? std::strerror(EISDIR) : "Not a regular file");
  }
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) {
    return empty();
  }
  void* data = ::mmap(
      nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.number(), /*offset=*/0);
  if (data == MAP_FAILED) {
    return cannot_read(std::strerror(errno));
  }
  return std::shared_ptr<const FileBytes>(new FileBytes(
      std::move(descriptor), static_cast<uint8_t*>(data), size));
}

Outcome<std::shared_ptr<const FileBytes>> FileBytes::copy(
    const void* data,
    size_t size) {
  if (size == 0) {
    return empty();
  }
  OwnedDescriptor descriptor(::memfd_create("etshared-program", MFD_CLOEXEC));
  if (descriptor.number() >= 0 &&
      ::ftruncate(descriptor.number(), static_cast<off_t>(size)) != 0) {
    descriptor = OwnedDescriptor();
  }
  const int flags =
      descriptor.number() >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* memory = ::mmap(
      nullptr, size, PROT_READ | PROT_WRITE, flags, descriptor.number(), 0);
  if (memory == MAP_FAILED) {
    return Failure{
        FailureKind::kExecutorch,
        concat("cannot allocate ", size, " bytes for the program"),
        {},
        et::Error::MemoryAllocationFailed};
  }
  std::memcpy(memory, data, size);
  ::mprotect(memory, size, PROT_READ);
  return std::shared_ptr<const FileBytes>(new FileBytes(
      std::move(descriptor), static_cast<uint8_t*>(memory), size));
}

FileBytes::~FileBytes() {
  ::munmap(data_, size_);
}

Mapping FileBytes::map_again(size_t offset, size_t size) const {
  if (!descriptor_.is_ours()) {
    void* copy = ::mmap(
        nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) {
      return {};
    }
    std::memcpy(copy, data_ + offset, size);
    ::mprotect(copy, size, PROT_READ);
    return {copy, size, 0};
  }
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t skipped = offset % page;
  void* start = ::mmap(
      nullptr,
      skipped + size,
      PROT_READ,
      MAP_SHARED,
      descriptor_.number(),
      static_cast<off_t>(offset - skipped));
  return start == MAP_FAILED ? Mapping()
                             : Mapping(start, skipped + size, skipped);
}

Mapping::Mapping(Mapping&& other) noexcept
    : start_(std::exchange(other.start_, nullptr)),
      nbytes_(other.nbytes_),
      skipped_(other.skipped_) {}

Mapping::~Mapping() {
  if (start_ != nullptr) {
    ::munmap(start_, nbytes_);
  }
}

} // namespace etshared::runtime
