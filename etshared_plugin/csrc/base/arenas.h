#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include <executorch/runtime/core/span.h>

#include "base/failure.h"

namespace etshared::runtime {

/// Alignment of everything the runtime allocates for tensors.
inline constexpr size_t kAlignment = 64;

/// XNNPACK kernels may read this far past the end of an input.
inline constexpr size_t kReadablePast = 64;

/// Aligned memory with some readable bytes after its end.
class AlignedMemory {
 public:
  AlignedMemory() = default;

  /// The result is empty when the memory cannot be had.
  static AlignedMemory allocate(size_t nbytes, bool zeroed = false) {
    AlignedMemory memory;
    if (nbytes > SIZE_MAX - kAlignment - kReadablePast) {
      return memory;
    }
    nbytes += kAlignment + kReadablePast;
    // calloc leaves large zeroed pages untouched until they are used.
    memory.block_.reset(zeroed ? std::calloc(nbytes, 1) : std::malloc(nbytes));
    const auto address = reinterpret_cast<uintptr_t>(memory.block_.get());
    memory.data_ = reinterpret_cast<uint8_t*>(
        (address + kAlignment - 1) / kAlignment * kAlignment);
    return memory;
  }

  explicit operator bool() const {
    return block_ != nullptr;
  }
  uint8_t* data() const {
    return data_;
  }

 private:
  struct Free {
    void operator()(void* block) const {
      std::free(block);
    }
  };

  std::unique_ptr<void, Free> block_;
  uint8_t* data_ = nullptr;
};

/// The memory of one session: mem_id N is `spans[N - 1]`. It never moves.
class Arenas {
 public:
  /// nullptr when the memory cannot be had.
  static std::shared_ptr<Arenas> allocate(const std::vector<uint64_t>& nbytes) {
    auto arenas = std::make_shared<Arenas>();
    for (const uint64_t size : nbytes) {
      AlignedMemory memory = AlignedMemory::allocate(size, /*zeroed=*/true);
      if (!memory) {
        return nullptr;
      }
      arenas->spans_.emplace_back(memory.data(), size);
      arenas->blocks_.push_back(std::move(memory));
    }
    return arenas;
  }

  et::Span<et::Span<uint8_t>> spans() {
    return {spans_.data(), spans_.size()};
  }
  uint8_t* at(uint32_t mem_id, uint64_t offset) const {
    return spans_[mem_id - 1].data() + offset;
  }
  bool contains(const void* address) const {
    return std::any_of(spans_.begin(), spans_.end(), [&](const auto& span) {
      return address >= span.data() && address < span.data() + span.size();
    });
  }

 private:
  std::vector<AlignedMemory> blocks_;
  std::vector<et::Span<uint8_t>> spans_;
};

} // namespace etshared::runtime
