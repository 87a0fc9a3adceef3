#include "packing/packed_index.h"

#include <cerrno>
#include <cstring>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

namespace etshared::runtime {
namespace {

// The file ends with: where the index starts (8 bytes), number of entries (4),
// magic (4), version (4), little-endian. The index lies before that. An entry
// is: length of its name (4), the name, where its bytes start (8), how many
// there are (8), and the seed of what packed them (4).
constexpr size_t kFooterSize = 20;
constexpr uint32_t kMagic = 0x58505743;
constexpr uint32_t kVersion = 2;
constexpr size_t kNumbersSize = 20;

template <typename T>
T number_at(const uint8_t* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

bool read_fully(int descriptor, uint64_t offset, uint8_t* data, size_t size) {
  while (size > 0) {
    const ssize_t count =
        ::pread(descriptor, data, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return false;
    }
    data += count;
    offset += static_cast<uint64_t>(count);
    size -= static_cast<size_t>(count);
  }
  return true;
}

} // namespace

PackedIndex read_packed_index(int descriptor) {
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0 ||
      static_cast<uint64_t>(status.st_size) < kFooterSize) {
    return {};
  }
  const uint64_t end = static_cast<uint64_t>(status.st_size) - kFooterSize;
  uint8_t footer[kFooterSize];
  if (!read_fully(descriptor, end, footer, kFooterSize)) {
    return {};
  }
  const auto start = number_at<uint64_t>(footer);
  const auto num_entries = number_at<uint32_t>(footer + 8);
  if (number_at<uint32_t>(footer + 12) != kMagic ||
      number_at<uint32_t>(footer + 16) != kVersion || start > end) {
    return {};
  }
  std::vector<uint8_t> bytes(end - start);
  if (!read_fully(descriptor, start, bytes.data(), bytes.size())) {
    return {};
  }
  PackedIndex index;
  size_t position = 0;
  for (uint32_t i = 0; i < num_entries; ++i) {
    if (bytes.size() - position < sizeof(uint32_t)) {
      return {};
    }
    const size_t length = number_at<uint32_t>(bytes.data() + position);
    position += sizeof(uint32_t);
    if (bytes.size() - position < kNumbersSize ||
        length > bytes.size() - position - kNumbersSize) {
      return {};
    }
    const auto* name = reinterpret_cast<const char*>(bytes.data() + position);
    position += length;
    const auto offset = number_at<uint64_t>(bytes.data() + position);
    const auto nbytes = number_at<uint64_t>(bytes.data() + position + 8);
    if (offset > start || nbytes > start - offset) {
      return {};
    }
    position += kNumbersSize;
    index.emplace(std::string(name, length), nbytes);
  }
  return index;
}

} // namespace etshared::runtime
