#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <executorch/runtime/backend/backend_options_map.h>

#include "base/failure.h"

namespace etshared::runtime {

inline constexpr const char* kXnnpackBackend = "XnnpackBackend";

/// XNNPACK's options that the runtime decides (1.5.1).
inline constexpr const char* kPackedCachePathOption = "packed_cache_path";
inline constexpr const char* kWeightCacheOption = "weight_cache_enabled";
inline constexpr const char* kWorkspaceOption = "workspace_sharing_mode";

/// Options as the record writes them.
using RecordedOptions = std::vector<std::pair<std::string, std::string>>;

/// What the backends of one method are told when it is loaded.
class BackendOptions {
 public:
  /// Adds the options of one more delegate of the method, but for those that
  /// the runtime decides. ExecuTorch has one value per method, so that delegates
  /// that want different ones are refused.
  Status add(const std::string& backend_id, const RecordedOptions& options);

  /// Gives an option of XNNPACK its value, whatever it was. Strings are cut at
  /// 255 characters.
  void set_xnnpack(const char* key, et::OptionValue value);

  /// Makes `map` point into this object.
  et::Error show_in(et::LoadBackendOptionsMap& map);

 private:
  std::map<std::string, std::vector<et::BackendOption>> by_backend_;
};

et::OptionValue text_option(std::string_view text);

/// Whether ExecuTorch can hold the backend id, the key and the value.
bool fits_option(
    const std::string& backend_id,
    const std::string& key,
    const std::string& value);

} // namespace etshared::runtime
