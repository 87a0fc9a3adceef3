#include "base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace etshared::runtime {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kPolynomial = 0x82f63b78; // with its bits reversed
constexpr size_t kWord = sizeof(uint64_t);

/// What a byte makes of the rest, by how many bytes follow it in its word.
using Tables = std::array<std::array<uint32_t, 256>, kWord>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) {
      rest = (rest >> 1) ^ ((rest & 1) != 0 ? kPolynomial : 0);
    }
    tables[0][byte] = rest;
  }
  for (size_t i = 1; i < kWord; ++i) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[i - 1][byte];
      tables[i][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

uint64_t word_at(const uint8_t* data) {
  uint64_t word;
  std::memcpy(&word, data, kWord);
  return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(
    const uint8_t* data,
    size_t size) {
  uint64_t rest = 0xffffffff;
  for (; size >= kWord; data += kWord, size -= kWord) {
    rest = _mm_crc32_u64(rest, word_at(data));
  }
  auto last = static_cast<uint32_t>(rest);
  for (; size > 0; ++data, --size) {
    last = _mm_crc32_u8(last, *data);
  }
  return ~last;
}
#endif

} // namespace

uint32_t crc32c_portable(const uint8_t* data, size_t size) {
  uint32_t rest = 0xffffffff;
  for (; size >= kWord; data += kWord, size -= kWord) {
    const uint64_t word = word_at(data) ^ rest;
    rest = 0;
    for (size_t i = 0; i < kWord; ++i) {
      rest ^= kTables[kWord - 1 - i][(word >> 8 * i) & 0xff];
    }
  }
  for (; size > 0; ++data, --size) {
    rest = (rest >> 8) ^ kTables[0][(rest ^ *data) & 0xff];
  }
  return ~rest;
}

uint32_t crc32c(const uint8_t* data, size_t size) {
#if defined(__x86_64__)
  static const bool has_sse42 = __builtin_cpu_supports("sse4.2") != 0;
  if (has_sse42) {
    return crc32c_sse42(data, size);
  }
#endif
  return crc32c_portable(data, size);
}

} // namespace etshared::runtime
