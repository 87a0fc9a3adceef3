#pragma once

#include <string>

namespace etshared::runtime {

/// Which XNNPACK this process computes with, as bytes.
struct XnnpackBuild {
  /// GNU build id of the library that holds it; empty when it has none.
  std::string build_id;
  /// What XNNPACK itself calls the build: a digest of its sources.
  std::string identifier;
};

XnnpackBuild xnnpack_build();

} // namespace etshared::runtime
