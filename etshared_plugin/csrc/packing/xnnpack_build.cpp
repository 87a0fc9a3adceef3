#include "packing/xnnpack_build.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

// XNNPACK's; the wheel of ExecuTorch 1.5.1 exports them without their header.
extern "C" {
size_t xnn_experimental_get_build_identifier_size();
const void* xnn_experimental_get_build_identifier_data();
}

namespace etshared::runtime {
namespace {

struct Search {
  const void* base;
  std::string build_id;
};

constexpr size_t padded(size_t size) {
  return (size + 3) / 4 * 4;
}

std::string build_id_among(const uint8_t* notes, size_t size) {
  while (size >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) header;
    std::memcpy(&header, notes, sizeof(header));
    const size_t name_size = padded(header.n_namesz);
    const size_t note_size =
        sizeof(header) + name_size + padded(header.n_descsz);
    if (note_size > size) {
      break;
    }
    const auto* name = reinterpret_cast<const char*>(notes + sizeof(header));
    if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == 4 &&
        std::memcmp(name, "GNU", 4) == 0) {
      return std::string(name + name_size, header.n_descsz);
    }
    notes += note_size;
    size -= note_size;
  }
  return {};
}

int look_into(dl_phdr_info* object, size_t, void* argument) {
  auto& search = *static_cast<Search*>(argument);
  // The first segment starts at the object's base.
  bool is_wanted = false;
  for (size_t i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    is_wanted = is_wanted ||
        (segment.p_type == PT_LOAD && segment.p_offset == 0 &&
         reinterpret_cast<const void*>(object->dlpi_addr + segment.p_vaddr) ==
             search.base);
  }
  if (!is_wanted) {
    return 0;
  }
  for (size_t i = 0; i < object->dlpi_phnum && search.build_id.empty(); ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type == PT_NOTE) {
      search.build_id = build_id_among(
          reinterpret_cast<const uint8_t*>(object->dlpi_addr + segment.p_vaddr),
          segment.p_memsz);
    }
  }
  return 1;
}

} // namespace

XnnpackBuild xnnpack_build() {
  XnnpackBuild build;
  build.identifier.assign(
      static_cast<const char*>(xnn_experimental_get_build_identifier_data()),
      xnn_experimental_get_build_identifier_size());
  Dl_info place = {};
  if (::dladdr(xnn_experimental_get_build_identifier_data(), &place) != 0) {
    Search search{place.dli_fbase, {}};
    ::dl_iterate_phdr(look_into, &search);
    build.build_id = std::move(search.build_id);
  }
  return build;
}

} // namespace etshared::runtime
