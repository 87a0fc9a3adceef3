#pragma once

#include <atomic>
#include <map>
#include <memory>

#include <executorch/runtime/core/data_loader.h>

#include "base/sha256.h"
#include "program/constant_addresses.h"
#include "program/file_bytes.h"

namespace etshared::runtime {

/// What a delegate's payload has to be; verified at most once.
class ExpectedPayload {
 public:
  ExpectedPayload(const Digest& digest, uint64_t nbytes)
      : digest_(digest), nbytes_(nbytes) {}

  bool matches(const uint8_t* data, size_t size) const;

  bool is_same(const ExpectedPayload& other) const {
    return digest_ == other.digest_ && nbytes_ == other.nbytes_;
  }

 private:
  Digest digest_;
  uint64_t nbytes_;
  mutable std::atomic<bool> is_verified_ = false;
};

/// Serves segments straight from memory, but a backend's payload only when it
/// is what the record says. This finds damage, not tampering: whoever can edit
/// the payload can edit the record.
///
/// Thread-safe once the last `expect()` has returned.
class CheckedDataLoader final : public et::DataLoader {
 public:
  explicit CheckedDataLoader(std::shared_ptr<const FileBytes> bytes)
      : bytes_(bytes), addresses_(std::move(bytes)) {}

  /// Where loads of constants find them; for loads with XNNPACK's weight cache.
  ConstantAddresses& addresses() const {
    return addresses_;
  }

  /// False when the segment is already expected to hold something else.
  bool expect(size_t segment_index, const Digest& digest, uint64_t nbytes);

  et::Result<et::FreeableBuffer>
  load(size_t offset, size_t size, const SegmentInfo& info) const override;

  et::Error load_into(
      size_t offset,
      size_t size,
      const SegmentInfo& info,
      void* buffer) const override;

  et::Result<size_t> size() const override {
    return bytes_->size();
  }

 private:
  std::shared_ptr<const FileBytes> bytes_;
  std::map<size_t, ExpectedPayload> expected_;
  /// Loading is const in ExecuTorch, although a thread loads for itself only.
  mutable ConstantAddresses addresses_;
};

} // namespace etshared::runtime
