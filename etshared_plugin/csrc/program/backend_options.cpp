#include "program/backend_options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

namespace etshared::runtime {
namespace {

using Text = std::array<char, et::kMaxOptionValueLength>;

// 1.5.1 LoadBackendOptionsMap: private, but a longer id is refused.
constexpr size_t kMaxBackendIdLength = 64;

/// By form, because the record holds text.
et::OptionValue parsed(const std::string& text) {
  if (text == "true" || text == "false") {
    return text == "true";
  }
  int number = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  if (result.ec == std::errc() && result.ptr == end) {
    return number;
  }
  return text_option(text);
}

et::BackendOption option(std::string_view key, et::OptionValue value) {
  et::BackendOption result;
  const size_t length = std::min(key.size(), et::kMaxOptionKeyLength - 1);
  std::memcpy(result.key, key.data(), length);
  result.value = std::move(value);
  return result;
}

et::BackendOption* find(
    std::vector<et::BackendOption>& options,
    std::string_view key) {
  const auto position = std::find_if(
      options.begin(), options.end(), [&](const et::BackendOption& one) {
        return key == one.key;
      });
  return position == options.end() ? nullptr : &*position;
}

} // namespace

et::OptionValue text_option(std::string_view text) {
  Text value{};
  std::memcpy(value.data(), text.data(), std::min(text.size(), value.size() - 1));
  return value;
}

bool fits_option(
    const std::string& backend_id,
    const std::string& key,
    const std::string& value) {
  const auto is_text = [](const std::string& text, size_t limit) {
    return text.size() < limit && text.find('\0') == std::string::npos;
  };
  return !key.empty() && is_text(backend_id, kMaxBackendIdLength) &&
      is_text(key, et::kMaxOptionKeyLength) &&
      is_text(value, et::kMaxOptionValueLength);
}

Status BackendOptions::add(
    const std::string& backend_id,
    const RecordedOptions& options) {
  for (const auto& [key, text] : options) {
    if (backend_id == kXnnpackBackend &&
        (key == kWeightCacheOption || key == kWorkspaceOption)) {
      continue;
    }
    auto& known = by_backend_[backend_id];
    const et::OptionValue value = parsed(text);
    const et::BackendOption* same = find(known, key);
    if (same == nullptr) {
      known.push_back(option(key, value));
    } else if (same->value != value) {
      return Failure{
          FailureKind::kContextFormat,
          concat(
              "two delegates for ", quoted(backend_id),
              " want different values of option ", quoted(key))};
    }
  }
  return success();
}

void BackendOptions::set_xnnpack(const char* key, et::OptionValue value) {
  auto& known = by_backend_[kXnnpackBackend];
  if (et::BackendOption* same = find(known, key)) {
    same->value = std::move(value);
  } else {
    known.push_back(option(key, std::move(value)));
  }
}

et::Error BackendOptions::show_in(et::LoadBackendOptionsMap& map) {
  for (auto& [backend_id, options] : by_backend_) {
    const et::Error error = map.set_options(
        backend_id.c_str(),
        et::Span<et::BackendOption>(options.data(), options.size()));
    if (error != et::Error::Ok) {
      return error;
    }
  }
  return et::Error::Ok;
}

} // namespace etshared::runtime
