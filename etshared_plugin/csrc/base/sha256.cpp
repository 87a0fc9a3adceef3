#include "base/sha256.h"

#include <bit>
#include <cstring>

namespace etshared::runtime {
namespace {

constexpr size_t kBlock = 64;

// The first 32 bits of the fractional parts of the cube roots of the first 64
// primes.
constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
    0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;

uint32_t load_big_endian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 |
      uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

void add_block(State& state, const uint8_t* block) {
  std::array<uint32_t, 64> words;
  for (size_t i = 0; i < 16; ++i) {
    words[i] = load_big_endian(block + 4 * i);
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t early = words[i - 15];
    const uint32_t late = words[i - 2];
    words[i] = words[i - 16] + words[i - 7] +
        (std::rotr(early, 7) ^ std::rotr(early, 18) ^ early >> 3) +
        (std::rotr(late, 17) ^ std::rotr(late, 19) ^ late >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t first = h + kRound[i] + words[i] + ((e & f) ^ (~e & g)) +
        (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25));
    const uint32_t second = ((a & b) ^ (a & c) ^ (b & c)) +
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const State added = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state.size(); ++i) {
    state[i] += added[i];
  }
}

} // namespace

Digest sha256(const uint8_t* data, size_t size) {
  State state = {
      0x6a09e667,
      0xbb67ae85,
      0x3c6ef372,
      0xa54ff53a,
      0x510e527f,
      0x9b05688c,
      0x1f83d9ab,
      0x5be0cd19};
  const size_t whole = size / kBlock * kBlock;
  for (size_t offset = 0; offset < whole; offset += kBlock) {
    add_block(state, data + offset);
  }

  std::array<uint8_t, 2 * kBlock> tail = {};
  const size_t rest = size - whole;
  if (rest > 0) {
    std::memcpy(tail.data(), data + whole, rest);
  }
  tail[rest] = 0x80;
  const size_t tail_size = rest + 9 <= kBlock ? kBlock : 2 * kBlock;
  const uint64_t nbits = uint64_t{size} * 8;
  for (size_t i = 0; i < 8; ++i) {
    tail[tail_size - 1 - i] = static_cast<uint8_t>(nbits >> 8 * i);
  }
  for (size_t offset = 0; offset < tail_size; offset += kBlock) {
    add_block(state, tail.data() + offset);
  }

  Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

} // namespace etshared::runtime
