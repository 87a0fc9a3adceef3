#include "packing/packed_memory.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/failure.h"

namespace etshared::runtime {
namespace {

constexpr const char* kName = "etshared-packed-weights";

// Newer than some C libraries' headers; kernels before 6.3 refuse it.
constexpr unsigned int kNoExecSeal = 0x0008u;

constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

int create_memory() {
  const unsigned int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int descriptor = ::memfd_create(kName, flags | kNoExecSeal);
  return descriptor < 0 && errno == EINVAL ? ::memfd_create(kName, flags)
                                           : descriptor;
}

/// Appends all of `source`, which is read from its start.
bool copy(int source, int target) {
  struct stat status = {};
  if (::fstat(source, &status) != 0) {
    return false;
  }
  off_t position = 0;
  while (position < status.st_size) {
    const auto rest = static_cast<size_t>(status.st_size - position);
    const ssize_t count = ::sendfile(target, source, &position, rest);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      errno = count == 0 ? EIO : errno;
      return false;
    }
  }
  return true;
}

} // namespace

std::unique_ptr<PackedMemory> PackedMemory::create() {
  const int descriptor = create_memory();
  if (descriptor < 0) {
    return nullptr;
  }
  return std::unique_ptr<PackedMemory>(new PackedMemory(descriptor));
}

std::unique_ptr<PackedMemory> PackedMemory::open_again(int descriptor) {
  // It has the lock of the other, which keeps the cache from writing.
  const int duplicate = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (duplicate < 0) {
    return nullptr;
  }
  return std::unique_ptr<PackedMemory>(new PackedMemory(duplicate));
}

std::string PackedMemory::obstacle() const {
  if (!descriptor_.is_ours()) {
    return "the process has closed the descriptor of its packed weights";
  }
  // "/proc" may be missing, forbidden, or just a directory.
  const int opened =
      ::open(path(0).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (opened < 0) {
    return concat(
        "its packed weights cannot be opened through '/proc': ",
        std::strerror(errno));
  }
  const bool is_same = descriptor_.is_same(opened);
  ::close(opened);
  return is_same ? "" : "'/proc' does not lead to its packed weights";
}

std::string PackedMemory::path(uint64_t number) const {
  // A digit of the number is a step that leads nowhere: "/" or "/.".
  std::string path = "/proc";
  for (; number != 0; number >>= 1) {
    path += (number & 1) != 0 ? "/." : "/";
  }
  return concat(path, "/self/fd/", descriptor_.number());
}

bool PackedMemory::finish() {
  if (!descriptor_.is_ours()) {
    errno = EBADF;
    return false;
  }
  bool is_sealed = ::fcntl(descriptor_.number(), F_ADD_SEALS, kSeals) == 0;
  if (!is_sealed && errno == EBUSY) {
    // A process that was forked while weights were packed has them mapped, and
    // could write; it has nothing of a copy.
    OwnedDescriptor sealed(create_memory());
    is_sealed = sealed.number() >= 0 &&
        copy(descriptor_.number(), sealed.number()) &&
        ::fcntl(sealed.number(), F_ADD_SEALS, kSeals) == 0;
    if (is_sealed) {
      descriptor_ = std::move(sealed);
    }
  }
  // 1.5.1's cache takes a shared lock to read its file, and then, to write more,
  // an exclusive one that it keeps as long as it lives. Held here, a shared lock
  // makes that fail: the cache does without, and keeps no descriptor.
  return is_sealed && ::flock(descriptor_.number(), LOCK_SH | LOCK_NB) == 0;
}

} // namespace etshared::runtime
