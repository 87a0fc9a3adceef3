#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace etshared::runtime {

using Digest = std::array<uint8_t, 32>;

/// SHA-256 (FIPS 180-4) of `size` bytes at `data`.
Digest sha256(const uint8_t* data, size_t size);

} // namespace etshared::runtime
