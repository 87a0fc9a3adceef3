#pragma once

#include <cstddef>
#include <cstdint>

namespace etshared::runtime {

/// CRC-32C (Castagnoli) of `size` bytes at `data`, with the CPU's instruction
/// for it where it has one.
uint32_t crc32c(const uint8_t* data, size_t size);

/// The same with tables, on any CPU.
uint32_t crc32c_portable(const uint8_t* data, size_t size);

} // namespace etshared::runtime
