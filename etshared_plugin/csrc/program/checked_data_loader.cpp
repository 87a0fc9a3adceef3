#include "program/checked_data_loader.h"

#include <cstring>

namespace etshared::runtime {
bool ExpectedPayload::matches(const uint8_t* data, size_t size) const {
  if (is_verified_.load(std::memory_order_acquire)) {
    return true;
  }
  if (size != nbytes_ || sha256(data, size) != digest_) {
    return false;
  }
  is_verified_.store(true, std::memory_order_release);
  return true;
}

bool CheckedDataLoader::expect(
    size_t segment_index,
    const Digest& digest,
    uint64_t nbytes) {
  const auto [position, is_new] =
      expected_.try_emplace(segment_index, digest, nbytes);
  return is_new || position->second.is_same(ExpectedPayload(digest, nbytes));
}

et::Result<et::FreeableBuffer> CheckedDataLoader::load(
    size_t offset,
    size_t size,
    const SegmentInfo& info) const {
  if (!is_inside(offset, size, bytes_->size())) {
    return et::Error::InvalidProgram;
  }
  const uint8_t* data = bytes_->data() + offset;
  if (info.segment_type == SegmentInfo::Type::Backend) {
    const auto position = expected_.find(info.segment_index);
    if (position != expected_.end() && !position->second.matches(data, size)) {
      return et::Error::InvalidProgram;
    }
  }
  if (addresses_.is_active()) {
    if (info.segment_type == SegmentInfo::Type::Backend) {
      addresses_.start_delegate();
    } else if (info.segment_type == SegmentInfo::Type::Constant) {
      data = addresses_.address(offset, size);
      if (data == nullptr) {
        return et::Error::MemoryAllocationFailed;
      }
    }
  }
  return et::FreeableBuffer(data, size, /*free_fn=*/nullptr);
}

et::Error CheckedDataLoader::load_into(
    size_t offset,
    size_t size,
    const SegmentInfo&,
    void* buffer) const {
  if (!is_inside(offset, size, bytes_->size())) {
    return et::Error::InvalidProgram;
  }
  if (size > 0) {
    std::memcpy(buffer, bytes_->data() + offset, size);
  }
  return et::Error::Ok;
}

} // namespace etshared::runtime
