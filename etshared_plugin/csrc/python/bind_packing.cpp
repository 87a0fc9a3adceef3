#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include "base/crc32c.h"
#include "packing/xnnpack_build.h"
#include "python/bindings.h"

namespace etshared::runtime {
namespace {

using namespace nb::literals;

using Bytes =
    nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// Four bytes, little-endian, for each chunk.
nb::bytes crc32c_of_chunks(const Bytes& data, size_t chunk_nbytes) {
  if (chunk_nbytes == 0) {
    throw nb::value_error("a chunk has no bytes");
  }
  const size_t size = data.size();
  std::vector<uint32_t> sums;
  {
    const WithoutGil unlocked;
    for (size_t start = 0; start < size; start += chunk_nbytes) {
      sums.push_back(crc32c(
          data.data() + start, std::min(chunk_nbytes, size - start)));
    }
  }
  return nb::bytes(sums.data(), sums.size() * sizeof(uint32_t));
}

} // namespace

void bind_packing(nb::module_& module) {
  module.def(
      "crc32c_of_chunks",
      &crc32c_of_chunks,
      "data"_a,
      "chunk_nbytes"_a,
      nb::sig("def crc32c_of_chunks(data: bytes | bytearray | memoryview, "
              "chunk_nbytes: int) -> bytes"),
      "CRC-32C of each chunk, the last of which may be shorter, in four bytes, "
      "little-endian.");
  module.def(
      "crc32c_variants",
      [](const Bytes& data) {
        return std::map<std::string, uint32_t>{
            {"portable", crc32c_portable(data.data(), data.size())},
            {"used", crc32c(data.data(), data.size())}};
      },
      "data"_a,
      nb::sig("def crc32c_variants(data: bytes | bytearray | memoryview) -> "
              "dict[str, int]"),
      "CRC-32C as it is computed here, and on any CPU.");
  module.def(
      "xnnpack_build",
      [] {
        const XnnpackBuild build = xnnpack_build();
        return nb::make_tuple(
            nb::bytes(build.build_id.data(), build.build_id.size()),
            nb::bytes(build.identifier.data(), build.identifier.size()));
      },
      nb::sig("def xnnpack_build() -> tuple[bytes, bytes]"),
      "GNU build id of the library that holds XNNPACK, empty when it has none, "
      "and what XNNPACK calls the build.");
}

} // namespace etshared::runtime
