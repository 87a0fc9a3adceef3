#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace etshared::runtime {

/// Bytes of each packed constant, by the name under which XNNPACK's weight
/// cache finds it: the key of the weight, followed by that of the bias if any.
using PackedIndex = std::map<std::string, uint64_t>;

/// Reads what the weight cache of ExecuTorch 1.5.1 has saved in its file; empty
/// when it has saved nothing, or what it could not read itself.
PackedIndex read_packed_index(int descriptor);

} // namespace etshared::runtime
