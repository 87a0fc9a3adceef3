#include "file_bytes.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace etshared::runtime {
namespace {

Failure cannot(const char* action, const std::string& path) {
  return Failure{
      FailureKind::kExecutorch,
      concat("cannot ", action, ' ', quoted(path), ": ", std::strerror(errno)),
      {},
      et::Error::AccessFailed};
}

Failure empty(const std::string& what) {
  return Failure{FailureKind::kProgramFormat, concat(what, " is empty")};
}

} // namespace

Outcome<std::shared_ptr<const FileBytes>> FileBytes::map(
    const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return cannot("open", path);
  }
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    return Failure{
        FailureKind::kExecutorch,
        concat("cannot open ", quoted(path), ": not a regular file"),
        {},
        et::Error::AccessFailed};
  }
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) {
    ::close(descriptor);
    return empty(quoted(path));
  }
  void* data =
      ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, /*offset=*/0);
  ::close(descriptor);
  if (data == MAP_FAILED) {
    return cannot("map", path);
  }
  return std::shared_ptr<const FileBytes>(
      new FileBytes(static_cast<uint8_t*>(data), size));
}

Outcome<std::shared_ptr<const FileBytes>> FileBytes::copy(
    const void* data,
    size_t size) {
  if (size == 0) {
    return empty("the program");
  }
  void* memory = ::mmap(
      nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return cannot("allocate memory for", concat(size, " bytes"));
  }
  std::memcpy(memory, data, size);
  ::mprotect(memory, size, PROT_READ);
  return std::shared_ptr<const FileBytes>(
      new FileBytes(static_cast<uint8_t*>(memory), size));
}

FileBytes::~FileBytes() {
  ::munmap(data_, size_);
}

} // namespace etshared::runtime
