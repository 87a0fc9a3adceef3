#include "packed_memory.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "failure.h"

namespace etshared::runtime {
namespace {

constexpr const char* kName = "etshared-packed-weights";

// Newer than some C libraries' headers; kernels before 6.3 refuse it.
constexpr unsigned int kNoExecSeal = 0x0008u;

} // namespace

std::unique_ptr<PackedMemory> PackedMemory::create() {
  const unsigned int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int descriptor = ::memfd_create(kName, flags | kNoExecSeal);
  if (descriptor < 0 && errno == EINVAL) {
    descriptor = ::memfd_create(kName, flags);
  }
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

PackedMemory::~PackedMemory() {
  ::close(descriptor_);
}

std::string PackedMemory::path(uint64_t number) const {
  // A digit of the number is a step that leads nowhere: "/" or "/.".
  std::string path = "/proc";
  for (; number != 0; number >>= 1) {
    path += (number & 1) != 0 ? "/." : "/";
  }
  return concat(path, "/self/fd/", descriptor_);
}

bool PackedMemory::finish() {
  const int seals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  // 1.5.1's cache takes a shared lock to read its file, and then, to write more,
  // an exclusive one that it keeps as long as it lives. Held here, a shared lock
  // makes that fail: the cache does without, and keeps no descriptor.
  return ::fcntl(descriptor_, F_ADD_SEALS, seals) == 0 &&
      ::flock(descriptor_, LOCK_SH | LOCK_NB) == 0;
}

} // namespace etshared::runtime
